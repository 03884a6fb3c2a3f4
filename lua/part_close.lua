-- part_close: closes a topic that is a place of another one: from now on it takes no new IDs.
--
-- KEYS[1]  tombs    zset, closed job ID scored by when it is free again (Unix ms)
-- KEYS[2]  receipt  string, the last call of the series and its reply
-- KEYS[3]  parts    hash, the map of the partitions of the topic
-- KEYS[4]  keyed    hash, job ID to its place in a lane
-- KEYS[5]  next     hash, running job ID to the successor that it will have
-- KEYS[6]  holders  zset, key and ID of every running job whose key has a limit of running jobs
-- KEYS[7]  rates    zset, key scored by its tat (Unix µs)
-- KEYS[8]  held     zset, key scored by the end of its hold (Unix ms)
-- KEYS[9]  staying  zset, key of a closed place scored by the pass that has found it last
-- ARGV[1]  number   number of this call in its series
-- ARGV[2]  seal     a text that replaces the seal of the place: see part_retire. '': none does
-- ARGV[3]  bykey    1 if jobs of the keys that it has stay, and otherwise 0
--
-- Nothing opens it again: not even remove_topic. It keeps the jobs that it has. They can be
-- replaced, and their handlers can enqueue them again. With bykey it goes on taking jobs of the
-- keys that it has, until it has none of the key: see part_keys.
-- Returns {'ok', now, open}: 1 if it was open, and otherwise 0.
-- Cost: O(log N).
-- Uses: now receipt
local tombs, receipt, parts, keyed, next = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local holders, rates, held, staying = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local number, seal, bykey = ARGV[1], ARGV[2], ARGV[3]

local told = replay(receipt, number)
if told then
  return {'ok', now, tonumber(told)}
end
local open = redis.call('ZSCORE', tombs, '') and 0 or 1
-- A wrong type must cause an error before anything is written.
redis.call('ZCARD', staying)
local stays = redis.call('HLEN', keyed) + redis.call('HLEN', next) + redis.call('ZCARD', holders)
  + redis.call('ZCARD', rates) + redis.call('ZCARD', held)
redis.call('HDEL', parts, '') -- after a deletion, the script can write at maxmemory
if seal ~= '' then
  redis.call('HSET', parts, 'seal', seal)
end
if open == 1 then
  if bykey == '1' and stays > 0 then
    redis.call('ZADD', staying, 1, '') -- the first pass
  end
  redis.call('ZADD', tombs, '+inf', '')
end
remember(receipt, number, open)
return {'ok', now, open}
