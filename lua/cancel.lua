-- cancel: removes a job in any state. If it is running, its server loses the lease and receives a
-- message.
--
-- KEYS[1]   pool      hash, job ID to record
-- KEYS[2]   bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[3]   leases    zset, job ID scored by the end of its lease
-- KEYS[4]   dead      zset, job ID scored by the time of burial
-- KEYS[5]   attempts  hash, job ID to number of finished attempts
-- KEYS[6]   errors    hash, job ID to its error log
-- KEYS[7]   moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[8]   stats     hash, counter to number
-- KEYS[9]   receipt   string, the last call of the series and its reply
-- KEYS[10]  runs      hash, schedule to the history of its runs
-- KEYS[11]  ready     list of job IDs, next one at the head
-- ARGV[1]   number    number of this call in its series
-- ARGV[2]   id        the job
-- ARGV[3]   channel   the control channel
-- ARGV[4]   topic     the topic's name, for the control channel
--
-- Returns {'ok', now, state}: scheduled, ready, running or dead, or none if there is no such job.
-- Cost: O(log N).
-- Uses: now receipt stats lease control history unready withdraw
local pool, bucket, leases, dead, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local errors, moved, stats = KEYS[6], KEYS[7], KEYS[8]
local receipt, runs, ready = KEYS[9], KEYS[10], KEYS[11]
local number, id, channel, topic = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local noted = scheduled(pool, runs, id)
local state = withdraw(id, noted, pool, bucket, ready, leases, dead, attempts, errors, moved, runs,
  channel, topic)
count(stats, 'cancelled', state == 'none' and 0 or 1)
remember(receipt, number, state)
return {'ok', now, state}
