-- delete: deletes a done job. A live job with the same ID is left alone.
--
-- KEYS[1]  done      zset, job ID scored by the time it is kept until
-- KEYS[2]  results   hash, job ID to its kept run and record
-- KEYS[3]  stats     hash, counter to number
-- KEYS[4]  receipt   string, the last call of the series and its reply
-- KEYS[5]  operator  none, never exists: a client without rights to it cannot make this call
-- ARGV[1]  number    number of this call in its series
-- ARGV[2]  id        the job
--
-- The result is deleted first. If something fails before its place is deleted, another call or a
-- prune deletes the place.
-- Returns {'ok', now, state}: done, or none if there is no such job.
-- Cost: O(log N).
-- Uses: now receipt stats
local done, results, stats, receipt, operator = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local number, id = ARGV[1], ARGV[2]

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local state = 'none'
if redis.call('HDEL', results, id) + redis.call('ZREM', done, id) > 0 then
  state = 'done'
  count(stats, 'deleted', 1)
end
remember(receipt, number, state)
return {'ok', now, state}
