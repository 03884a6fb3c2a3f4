
-- Gives: line_up
-- Expects: key_of offer

-- line_up puts jobs that have places into their lanes. It returns their number, and a list of the
-- other jobs.
local function line_up(turn, lane, keyed, ids)
  local places = redis.call('HMGET', keyed, unpack(ids))
  local entries, n, keys, seen, plain = {}, 0, {}, {}, {}
  for i, id in ipairs(ids) do
    local place = places[i]
    local key = place and key_of(place)
    if key then
      entries[n + 1], entries[n + 2] = '0', place .. id
      n = n + 2
      if not seen[key] then
        seen[key], keys[#keys + 1] = true, key
      end
    else
      plain[#plain + 1] = id
    end
  end
  if n > 0 then
    offer(turn, keys)
    redis.call('ZADD', lane, unpack(entries))
  end
  return n / 2, plain
end
