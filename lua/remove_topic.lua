-- remove_topic: deletes all keys of a topic that has neither jobs nor schedules.
--
-- KEYS[1]   pool       hash, job ID to record
-- KEYS[2]   bucket     zset, job ID scored by due time (Unix ms)
-- KEYS[3]   ready      list of job IDs, next one at the head
-- KEYS[4]   handoff    list of job IDs on the way from a server's wait to its take
-- KEYS[5]   leases     zset, job ID scored by the end of its lease
-- KEYS[6]   attempts   hash, job ID to number of finished attempts
-- KEYS[7]   errors     hash, job ID to its error log
-- KEYS[8]   moved      hash, job ID to its current due time, if it differs from the record's
-- KEYS[9]   dead       zset, job ID scored by the time of burial
-- KEYS[10]  done       zset, job ID scored by the time it is kept until
-- KEYS[11]  results    hash, job ID to its kept run and record
-- KEYS[12]  meta       hash, settings of the topic made by operators
-- KEYS[13]  stats      hash, counter to number
-- KEYS[14]  sizes      hash, the size of the largest record
-- KEYS[15]  idle       zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[16]  schedules  hash, schedule to definition
-- KEYS[17]  slots      zset, schedule scored by its next slot (Unix ms)
-- KEYS[18]  waiting    zset, schedule scored by the slot that waits for its last run to finish
-- KEYS[19]  fired      hash, schedule to the state of its slots
-- KEYS[20]  runs       hash, schedule to the history of its runs
-- KEYS[21]  receipt    string, the last call of the series and its reply
-- KEYS[22]  operator   none, never exists: a client without rights to it cannot make this call
-- KEYS[23]  turn       zset, key of waiting jobs scored by its pass
-- KEYS[24]  lane       zset, place and ID of every ready job that has a key
-- KEYS[25]  keyed      hash, job ID to its place in a lane
-- KEYS[26]  rules      hash, key to what is set for it
-- KEYS[27]  held       zset, key scored by the end of its hold (Unix ms)
-- KEYS[28]  minutes    hash, minute modulo 360 to the numbers of that minute
-- KEYS[29]  hours      hash, hour modulo 720 to the numbers of that hour
-- KEYS[30]  parked     zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[31]  holders    zset, key and ID of every running job whose key has a limit of running jobs
-- KEYS[32]  rates      zset, key scored by its tat (Unix µs)
-- KEYS[33]  blockers   zset, place and ID of every job that its key waits for (see limits)
-- KEYS[34]  lags       zset, key that a limit has stopped scored by the pass that it had
-- KEYS[35]  tombs      zset, closed job ID scored by when it is free again (Unix ms)
-- KEYS[36]  next       hash, running job ID to the successor that it will have
-- KEYS[37]  notes      hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[38]  parcels    zset, jobs that ended runs have handed over, by target and number
-- KEYS[39]  plans      hash, target to the plan by which its parcels are delivered
-- KEYS[40]  undelivered  list, the last parcels that their targets have refused
-- KEYS[41]  flows      hash, ID of a last step to how far its flow has come
-- KEYS[42]  steps      hash, the steps of flows
-- KEYS[43]  staying    zset, key of a closed place scored by the pass that has found it last
-- ARGV[1]   number     number of this call in its series
--
-- Redis frees the memory of the keys in the background. A topic that is closed stays so, and the
-- map of its partitions is kept.
-- Returns {'ok', now, answer}: removed, or the numbers of unfinished jobs, leases, done jobs,
-- schedules, parcels and flows, with spaces between them, if any is not 0: nothing was done.
-- Cost: O(1).
-- Uses: now receipt lease
local pool, bucket, ready, handoff, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local attempts, errors, moved, dead, done = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local results, meta, stats, sizes, idle = KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15]
local schedules, slots, waiting, fired, runs = KEYS[16], KEYS[17], KEYS[18], KEYS[19], KEYS[20]
local receipt, operator = KEYS[21], KEYS[22]
local number = ARGV[1]
local turn, lane, keyed, rules, held = KEYS[23], KEYS[24], KEYS[25], KEYS[26], KEYS[27]
local minutes, hours = KEYS[28], KEYS[29]
local parked, holders, rates, blockers = KEYS[30], KEYS[31], KEYS[32], KEYS[33]
local lags, tombs, next, notes = KEYS[34], KEYS[35], KEYS[36], KEYS[37]
local parcels, plans, undelivered = KEYS[38], KEYS[39], KEYS[40]
local flows, steps, staying = KEYS[41], KEYS[42], KEYS[43]

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local jobs, leased = redis.call('HLEN', pool), redis.call('ZCARD', leases)
jobs = math.max(jobs, redis.call('HLEN', next))
if leased > 0 and redis.call('ZSCORE', leases, anchor()) then
  leased = leased - 1
end
-- The handler of a cancelled job can still run.
local alive = string.char(0) .. '1' .. string.format('%017.3f', now + 0.001)
local stragglers = redis.pcall('ZLEXCOUNT', holders, '[' .. alive, '(' .. string.char(1))
leased = leased + (type(stragglers) == 'number' and stragglers or 0) -- 0 if it is of a wrong type
local kept = math.max(redis.call('ZCARD', done), redis.call('HLEN', results))
local planned = redis.call('HLEN', schedules)
local answer = 'removed'
local handed, begun = redis.call('ZCARD', parcels), redis.call('HLEN', flows)
if jobs + leased + kept + planned + handed + begun > 0 then
  answer = table.concat({jobs, leased, kept, planned, handed, begun}, ' ')
else
  redis.call('UNLINK', bucket, ready, handoff, leases, attempts, errors, moved, dead)
  redis.call('UNLINK', meta, stats, sizes, idle, slots, waiting, fired, runs)
  redis.call('UNLINK', turn, lane, keyed, rules, held, minutes, hours)
  local closed = type(redis.pcall('ZSCORE', tombs, '')) == 'string'
  redis.call('UNLINK', parked, holders, rates, blockers, lags, tombs, next, notes)
  redis.call('UNLINK', plans, undelivered, flows, steps, staying)
  if closed then
    redis.call('ZADD', tombs, '+inf', '')
  end
end
remember(receipt, number, answer)
return {'ok', now, answer}
