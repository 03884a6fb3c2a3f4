
-- Gives: hold

-- hold keeps takes away from a topic until a time. It prolongs a hold and never shortens one, also
-- not that of a take (see take_rate), which is over in some milliseconds. With pcall: it never
-- decides the fate of a job. It returns the error, if the topic is not held.
local function hold(meta, ending, by, reason)
  local was = redis.call('HMGET', meta, 'hold', 'ahead')
  local till = tonumber(was[1] or 0) or 0
  if was[1] and was[1] == was[2] then
    ending = math.max(ending, till + 1)
  end
  if ending > till then
    local set = redis.pcall('HSET', meta, 'hold', ending, 'holdby', by, 'holdwhy', reason)
    return type(set) == 'table' and set or nil
  end
end
