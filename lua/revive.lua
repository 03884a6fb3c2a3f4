-- revive: puts a dead job back to the tail of ready, with its attempts on record and its full
-- number of retries.
--
-- KEYS[1]  dead      zset, job ID scored by the time of burial
-- KEYS[2]  ready     list of job IDs, next one at the head
-- KEYS[3]  attempts  hash, job ID to number of finished attempts
-- KEYS[4]  moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[5]  stats     hash, counter to number
-- KEYS[6]  receipt   string, the last call of the series and its reply
-- KEYS[7]  operator  none, never exists: a client without rights to it cannot make this call
-- ARGV[1]  number    number of this call in its series
-- ARGV[2]  id        the job
--
-- Returns {'ok', now, state}: dead (revived), or none if there is no such dead job.
-- Cost: O(log N).
-- Uses: now receipt stats
local dead, ready, attempts, moved = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local stats, receipt, operator = KEYS[5], KEYS[6], KEYS[7]
local number, id = ARGV[1], ARGV[2]

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local state = 'none'
if redis.call('ZSCORE', dead, id) then
  state = 'dead'
  local spent, known = redis.call('HGET', attempts, id) or '0', redis.call('HGET', moved, id)
  local snoozes = string.match(known or '', ' (%d+) [01]$') or '0'
  redis.call('HSET', moved, id, now .. ' revive ' .. spent .. ' ' .. snoozes .. ' 1')
  redis.call('RPUSH', ready, id)
  redis.call('ZREM', dead, id)
  count(stats, 'revived', 1)
end
remember(receipt, number, state)
return {'ok', now, state}
