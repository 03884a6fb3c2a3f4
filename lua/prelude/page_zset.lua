
-- page_zset: how many entries of a zset precede a place in it, even if the entry there is gone.
-- Gives: passed

-- precedes compares IDs by their bytes, as Redis does. The comparison of Lua depends on the locale
-- of the server.
local function precedes(a, b)
  local low, high = 0, math.min(#a, #b)
  local shorter = high
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if string.sub(a, 1, middle) == string.sub(b, 1, middle) then
      low = middle
    else
      high = middle - 1
    end
  end
  if low == shorter then
    return #a < #b
  end
  return string.byte(a, low + 1) < string.byte(b, low + 1)
end

-- passed returns how many entries of a zset precede a score and an ID. The ID itself counts if
-- through is set.
local function passed(zset, score, id, through)
  local known = redis.call('ZSCORE', zset, id)
  if known and tonumber(known) == tonumber(score) then
    return redis.call('ZRANK', zset, id) + (through and 1 or 0)
  end
  local low = redis.call('ZCOUNT', zset, '-inf', '(' .. score)
  local high = redis.call('ZCOUNT', zset, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if precedes(redis.call('ZRANGE', zset, middle, middle)[1], id) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end
