-- retry: puts jobs whose attempt failed back into bucket, due after their backoff.
--
-- KEYS[1]    leases    zset, job ID scored by the end of its lease
-- KEYS[2]    bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[3]    attempts  hash, job ID to number of finished attempts
-- KEYS[4]    errors    hash, job ID to its error log
-- KEYS[5]    moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[6]    stats     hash, counter to number
-- KEYS[7]    receipt   string, the last call of the series and its reply
-- KEYS[8]    pool      hash, job ID to record
-- KEYS[9]    runs      hash, schedule to the history of its runs
-- KEYS[10]   keyed     hash, job ID to its place in a lane
-- KEYS[11]   sizes     hash, the size of the largest record, and the number of the last place
-- KEYS[12]   meta      hash, settings of the topic made by operators
-- KEYS[13]   blockers  zset, place and ID of every job that its key waits for (see limits)
-- KEYS[14]   next      hash, running job ID to the successor that it will have
-- KEYS[15]   notes     hash, who waits for jobs, and what their runs have noted (see wait, note)
-- ARGV[1]    number    number of this call in its series
-- ARGV[2..]  jobs      rows (see prelude/settle.lua) of four values: delay in ms, the tally for its
--                      entry in moved ("<spent> <snoozes> <revived>"), entry for the error log, and
--                      the run's entry for runs (empty: none)
--
-- If the jobs of a key run in their order, such a job stays the first one, and its key waits for
-- it. A job that has a successor takes its record, and keeps its attempts and its errors. It is not
-- due earlier than the successor would have been. At most 1,000 jobs a call.
-- Returns {'ok', now, letters}: o for put back, l for lost, g for gone; no letters if all are put
-- back. q for left for another call, because the successors have more than 1 MiB.
-- Cost: O(jobs × log N).
-- Uses: now receipt stats lease owns settle append errors history place reseat order block
-- Uses: keep_first put_back failures
local leases, bucket, attempts, errors, moved = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local stats, receipt, pool, runs = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local keyed, sizes, meta, blockers = KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local next, notes = KEYS[14], KEYS[15]
local number, jobs, first = ARGV[1], ARGV, 2

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local ids, where, letters = rows(leases, pool, jobs, first)
local heirs, take_on, taken_on, tell
local others = #ids > 0 and redis.call('EXISTS', next, notes, notes) or 0 -- 1: next, 2: notes
if others % 2 == 1 then
  -- Uses: successor heirs spare inherit inherited ended
  take_on, taken_on = inherit, inherited
  tell = others > 1 and endings(notes, pool, stats)
  local skip, any
  heirs, skip, any = heirs_of(next, ids)
  if any then
    ids, where, letters, heirs = spare(ids, where, letters, skip, heirs)
  end
end
if #ids > 0 then
  redis.call('ZREM', bucket, '') -- after a deletion, the script can write at maxmemory
  local dues = delays(jobs, ids, where)
  if heirs then
    take_on(heirs, ids, dues, keyed, sizes)
  end
  if not keep_first(keyed, sizes, meta, blockers, ids) then
    reseat(keyed, sizes, ids, dues)
  end
  put_back(leases, bucket, moved, jobs, ids, where, dues, 'retry')
  if heirs then
    taken_on(heirs, ids, dues, pool, moved, next, jobs, where, tell)
  end
  failures(attempts, errors, runs, jobs, ids, where, 3, 1)
end
count(stats, 'retried', #ids)
remember(receipt, number, letters)
return {'ok', now, letters}
