
-- Gives: reseat
-- Expects: key_of place_rest placed_at

-- reseat gives the jobs that have keys new places, for new due times. It returns the old places and
-- the new ones, each at the index of the job.
local function reseat(keyed, sizes, ids, dues)
  local old, new, fields = {}, {}, {}
  if #ids == 0 or redis.call('EXISTS', keyed) == 0 then
    return old, new
  end
  old = redis.call('HMGET', keyed, unpack(ids))
  local count_of = 0
  for i = 1, #ids do
    count_of = count_of + (old[i] and 1 or 0)
  end
  if count_of == 0 then
    return old, new
  end
  local number = redis.call('HINCRBY', sizes, 'number', count_of) - count_of
  for i, id in ipairs(ids) do
    if old[i] and key_of(old[i]) then
      local first, start = string.sub(old[i], 1, -place_rest - 1), string.sub(old[i], -16, -9)
      number = number + 1
      new[i] = placed_at(first, tonumber(dues[i]), number, tonumber(start, 16) or 2147483648,
        string.sub(old[i], -8))
      fields[#fields + 1], fields[#fields + 2] = id, new[i]
    end
  end
  if #fields > 0 then
    redis.call('HSET', keyed, unpack(fields))
  end
  return old, new
end
