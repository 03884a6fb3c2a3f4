
-- Gives: hold

-- hold keeps takes away from a topic until a time. It prolongs a hold and never shortens one. With
-- pcall: it never decides the fate of a job. It returns the error, if the topic is not held.
local function hold(meta, ending, by, reason)
  if ending > (tonumber(redis.call('HGET', meta, 'hold') or 0) or 0) then
    local set = redis.pcall('HSET', meta, 'hold', ending, 'holdby', by, 'holdwhy', reason)
    return type(set) == 'table' and set or nil
  end
end
