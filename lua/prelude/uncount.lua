-- uncount: forgets the running jobs of keys that have no limits any more.
-- Gives: uncount

-- uncount deletes holders, except for the entries of stragglers that count for the topic: at most
-- 1,000.
local function uncount(holders)
  local to = '(' .. string.char(1)
  local list, kept = redis.call('ZRANGEBYLEX', holders, '-', to, 'LIMIT', 0, 1000), {}
  redis.call('DEL', holders)
  for i, entry in ipairs(list) do
    kept[2 * i - 1], kept[2 * i] = 0, entry
  end
  if #kept > 0 then
    redis.call('ZADD', holders, unpack(kept))
  end
end
