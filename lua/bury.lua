-- bury: moves jobs that must not run again to dead. They keep their records and their error logs.
--
-- KEYS[1]    leases    zset, job ID scored by the end of its lease
-- KEYS[2]    dead      zset, job ID scored by the time of burial
-- KEYS[3]    attempts  hash, job ID to number of finished attempts
-- KEYS[4]    errors    hash, job ID to its error log
-- KEYS[5]    stats     hash, counter to number
-- KEYS[6]    receipt   string, the last call of the series and its reply
-- KEYS[7]    pool      hash, job ID to record
-- KEYS[8]    runs      hash, schedule to the history of its runs
-- KEYS[9]    keyed     hash, job ID to its place in a lane
-- KEYS[10]   sizes     hash, the size of the largest record, and the number of the last place
-- KEYS[11]   meta      hash, settings of the topic made by operators
-- KEYS[12]   blockers  zset, place and ID of every job that its key waits for (see limits)
-- KEYS[13]   next      hash, running job ID to the successor that it will have
-- KEYS[14]   notes     hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[15]   parcels   zset, what is on the way to other topics, by target and number
-- KEYS[16]   plans     hash, target to the plan by which its parcels are delivered
-- ARGV[1]    number    number of this call in its series
-- ARGV[2..]  jobs      rows (see prelude/settle.lua) of three values: finished attempts to add (0
--                      or 1), entry for the error log (empty: none), and the run's entry for runs
--                      (empty: none)
--
-- If the limits of the topic say so, the keys of the jobs wait until somebody has dealt with them.
-- At most 1,000 jobs a call.
-- Returns {'ok', now, letters}: o for buried, l for lost, g for gone; no letters if all are buried.
-- q for left alone, because the job has a successor: again ends it.
-- Cost: O(jobs × log N).
-- Uses: now receipt stats lease owns settle append errors history place reseat order block
-- Uses: keep_first failures
local leases, dead, attempts, errors = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local stats, receipt, pool, runs = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local keyed, sizes, meta, blockers = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local next, notes, parcels, plans = KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local number, jobs, first = ARGV[1], ARGV, 2

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local ids, where, letters = rows(leases, pool, jobs, first)
local others = #ids > 0 and redis.call('EXISTS', next, notes, notes) or 0 -- 1: next, 2: notes
if others % 2 == 1 then
  -- Uses: followed spare
  local has, any = followed(next, ids)
  if any then
    ids, where, letters = spare(ids, where, letters, has)
  end
end
if #ids > 0 then
  redis.call('ZREM', dead, '') -- after a deletion, the script can write at maxmemory
  keep_first(keyed, sizes, meta, blockers, ids, true)
  for _, id in ipairs(ids) do
    redis.call('ZADD', dead, now, id)
  end
  release(leases, ids)
  failures(attempts, errors, runs, jobs, ids, where, 2)
  if others > 1 then
    -- Uses: control look ended log_of
    local tell = endings(notes, pool, stats, look, function()
      -- Uses: parcels post link
      return reporter(notes, parcels, plans)
    end)
    tell.jobs(ids, log_of(errors), true)
    tell.close()
  end
end
count(stats, 'buried', #ids)
remember(receipt, number, letters)
return {'ok', now, letters}
