
-- tombs: a tomb closes an ID until a time. Until then enqueue stores no job with the ID.
-- Gives: room_of
-- Expects: now

-- room_of returns how many tombs a topic may get, by the key that has them and by how many it may
-- have. First it removes some that are over, up to two for each that is wanted. So their number is
-- bounded even if nobody prunes.
local function room_of(key, bound, wanted)
  local list, ended = redis.call('ZRANGE', key, 0, 2 * wanted - 1, 'WITHSCORES'), {}
  for n = 2, #list, 2 do
    if tonumber(list[n]) <= now then
      ended[#ended + 1] = list[n - 1]
    end
  end
  if #ended > 0 then
    redis.call('ZREM', key, unpack(ended))
  end
  return bound - redis.call('ZCARD', key)
end
