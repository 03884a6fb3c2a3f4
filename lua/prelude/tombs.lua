
-- tombs: a tomb closes an ID until a time. Until then enqueue stores no job with the ID.
-- Gives: room_of
-- Expects: now

-- room_of returns how many tombs a topic may get, by the key that has them and by how many it may
-- have. It also returns some that are over, up to two for each that is wanted. The caller removes
-- them before it writes others, so their number is bounded even if nobody prunes. That of the empty
-- ID, which closes the topic, does not count.
local function room_of(key, bound, wanted)
  local list, past = redis.call('ZRANGE', key, 0, 2 * wanted - 1, 'WITHSCORES'), {}
  for n = 2, #list, 2 do
    if list[n - 1] ~= '' and tonumber(list[n]) <= now then
      past[#past + 1] = list[n - 1]
    end
  end
  local may = bound - redis.call('ZCARD', key) + #past
  if may < wanted and redis.call('ZSCORE', key, '') then
    may = may + 1
  end
  return may, past
end
