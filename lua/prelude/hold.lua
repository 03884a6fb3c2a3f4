-- hold keeps takes away from a topic until a time. It prolongs a hold and never shortens one. With
-- pcall: at worst the topic is not held.
local function hold(meta, ending, by, reason)
  if ending > tonumber(redis.call('HGET', meta, 'hold') or 0) then
    redis.pcall('HSET', meta, 'hold', ending, 'holdby', by, 'holdwhy', reason)
  end
end

