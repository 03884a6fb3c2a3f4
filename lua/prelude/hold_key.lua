
-- Gives: hold_key

-- hold_key takes the turn of a key until a time. It prolongs a hold and never shortens one.
local function hold_key(held, turn, key, ending)
  redis.call('ZREM', turn, key) -- after a deletion, the script can write at maxmemory
  if ending > (tonumber(redis.call('ZSCORE', held, key) or 0) or 0) then
    redis.call('ZADD', held, string.format('%.0f', ending), key)
  end
end
