-- part_close: closes a topic that is a place of another one: from now on it takes no new IDs.
--
-- KEYS[1]  tombs    zset, closed job ID scored by when it is free again (Unix ms)
-- KEYS[2]  receipt  string, the last call of the series and its reply
-- KEYS[3]  parts    hash, the map of the partitions of the topic
-- ARGV[1]  number   number of this call in its series
-- ARGV[2]  seal     a text that replaces the seal of the place: see part_retire. '': none does
--
-- Nothing opens it again: not even remove_topic. It keeps the jobs that it has. They can be
-- replaced, and their handlers can enqueue them again.
-- Returns {'ok', now, open}: 1 if it was open, and otherwise 0.
-- Cost: O(log N).
-- Uses: now receipt
local tombs, receipt, parts = KEYS[1], KEYS[2], KEYS[3]
local number, seal = ARGV[1], ARGV[2]

local told = replay(receipt, number)
if told then
  return {'ok', now, tonumber(told)}
end
local open = redis.call('ZSCORE', tombs, '') and 0 or 1
redis.call('HDEL', parts, '') -- after a deletion, the script can write at maxmemory
if seal ~= '' then
  redis.call('HSET', parts, 'seal', seal)
end
if open == 1 then
  redis.call('ZADD', tombs, '+inf', '')
end
remember(receipt, number, open)
return {'ok', now, open}
