-- schedule_remove: removes a schedule with its history, and cancels the job of its last slot unless
-- that is running.
--
-- KEYS[1]   schedules  hash, schedule to definition
-- KEYS[2]   slots      zset, schedule scored by its next slot (Unix ms)
-- KEYS[3]   waiting    zset, schedule scored by the slot that waits for its last run to finish
-- KEYS[4]   fired      hash, schedule to the state of its slots
-- KEYS[5]   runs       hash, schedule to the history of its runs
-- KEYS[6]   receipt    string, the last call of the series and its reply
-- KEYS[7]   pool       hash, job ID to record
-- KEYS[8]   bucket     zset, job ID scored by due time (Unix ms)
-- KEYS[9]   leases     zset, job ID scored by the end of its lease
-- KEYS[10]  dead       zset, job ID scored by the time of burial
-- KEYS[11]  attempts   hash, job ID to number of finished attempts
-- KEYS[12]  errors     hash, job ID to its error log
-- KEYS[13]  moved      hash, job ID to its current due time, if it differs from the record's
-- KEYS[14]  stats      hash, counter to number
-- KEYS[15]  ready      list of job IDs, next one at the head
-- KEYS[16]  lane       zset, place and ID of every ready job that has a key
-- KEYS[17]  keyed      hash, job ID to its place in a lane
-- KEYS[18]  blockers   zset, place and ID of every job that its key waits for (see limits)
-- KEYS[19]  parked     zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[20]  turn       zset, key of waiting jobs scored by its pass
-- KEYS[21]  idle       zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[22]  holders    zset, key and ID of every running job whose key has a limit of running jobs
-- KEYS[23]  sizes      hash, the size of the largest record
-- KEYS[24]  next       hash, running job ID to the successor that it will have
-- KEYS[25]  notes      hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[26]  parcels    zset, what is on the way to other topics, by target and number
-- KEYS[27]  plans      hash, target to the plan by which its parcels are delivered
-- ARGV[1]   number     number of this call in its series
-- ARGV[2]   name       the schedule
-- ARGV[3]   channel    the control channel
-- ARGV[4]   topic      the topic's name, for the control channel
--
-- The definition is deleted last. If something fails before, another call finds it and removes the
-- rest.
-- Returns {'ok', now, state, before}: gone and the definition, at most its first 64 KiB, which have
-- all but the end of a large payload, or none and '' if there is no such schedule.
-- Cost: O(log N).
-- Uses: now receipt retold stats lease control ring schedule history unready expect place rouse
-- Uses: free_keys unblock end_run close_books holder straggler look ended
-- Uses: withdraw
local schedules, slots, waiting = KEYS[1], KEYS[2], KEYS[3]
local fired, runs, receipt = KEYS[4], KEYS[5], KEYS[6]
local pool, bucket, leases, dead, attempts = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local errors, moved, stats, ready = KEYS[12], KEYS[13], KEYS[14], KEYS[15]
local lane, keyed = KEYS[16], KEYS[17]
local blockers, parked, turn, idle = KEYS[18], KEYS[19], KEYS[20], KEYS[21]
local holders, sizes, next, notes = KEYS[22], KEYS[23], KEYS[24], KEYS[25]
local parcels, plans = KEYS[26], KEYS[27]
local number, name, channel, topic = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- reports is for endings.
local function reports()
  -- Uses: parcels post link
  return reporter(notes, parcels, plans)
end

local told = replay(receipt, number)
if told then
  return retold(told)
end

local state, before = 'none', redis.call('HGET', schedules, name)
if before then
  state, before = 'gone', string.sub(before, 1, 65536)
  local last = state_of(redis.call('HGET', fired, name))
  local unfinished = last and going(pool, dead, last)
  if unfinished and not redis.call('ZSCORE', leases, last.job) and flagged(pool, last.job) then
    local _, freed = withdraw({last.job}, {}, {}, pool, bucket, ready, lane, keyed, leases, dead,
      attempts, errors, moved, runs, blockers, parked, turn, holders, sizes, next, channel,
      topic, notes, stats, reports)
    if freed > 0 then
      ring(idle, channel, topic, freed)
    end
    count(stats, 'cancelled', 1)
  end
  redis.call('ZREM', slots, name)
  redis.call('ZREM', waiting, name)
  redis.call('HDEL', fired, name)
  forget(runs, name)
  redis.call('HDEL', schedules, name)
end
before = before or ''
remember(receipt, number, state .. ' ' .. before)
return {'ok', now, state, before}
