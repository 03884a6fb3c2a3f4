
-- Gives: count_in
-- Expects: key_of holder_of

-- count_in gives running jobs their places in the limits of their keys: of all keys, or of one. At
-- most 1,000 are looked at, those whose leases end last.
local function count_in(holders, leases, keyed, only)
  local ids = redis.call('ZRANGE', leases, -1001, -1)
  if #ids == 0 then
    return
  end
  local places, entries = redis.call('HMGET', keyed, unpack(ids)), {}
  for i, id in ipairs(ids) do
    local key = places[i] and key_of(places[i])
    if key and (not only or key == only) then
      entries[#entries + 1], entries[#entries + 2] = 0, holder_of(key, id)
    end
  end
  if #entries > 0 then
    redis.call('ZADD', holders, unpack(entries))
  end
end
