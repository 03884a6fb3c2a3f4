
-- take_stray: ready jobs that are in the wrong place.
-- Gives: stray
-- Expects: now key_of has_key of_record place_of offer refilled ready sizes turn lane keyed

-- stray puts a ready job that has a key into its lane, from where an older release has put it. A
-- job without a key goes to ready: an older release has stored it under the ID of one with a key.
-- It returns the key, or nil and sets refilled.
local function stray(id, record)
  redis.call('ZREM', lane, '') -- after a deletion, the script can write at maxmemory
  if not has_key(record) then
    refilled = true
    redis.call('RPUSH', ready, id)
    redis.call('HDEL', keyed, id)
    return nil
  end
  local spot = redis.call('HGET', keyed, id)
  if not spot or not of_record(spot, record) then
    spot = place_of(record, now, redis.call('HINCRBY', sizes, 'number', 1))
    redis.call('HSET', keyed, id, spot)
  end
  local key = key_of(spot)
  offer(turn, {key})
  redis.call('ZADD', lane, 0, spot .. id)
  return key
end
