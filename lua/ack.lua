-- ack: ends jobs for good and deletes them, unless they are kept as done.
--
-- KEYS[1]    leases    zset, job ID scored by the end of its lease
-- KEYS[2]    pool      hash, job ID to record
-- KEYS[3]    attempts  hash, job ID to number of finished attempts
-- KEYS[4]    errors    hash, job ID to its error log
-- KEYS[5]    moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[6]    done      zset, job ID scored by the time it is kept until
-- KEYS[7]    results   hash, job ID to its kept run and record
-- KEYS[8]    stats     hash, counter to number
-- KEYS[9]    receipt   string, the last call of the series and its reply
-- KEYS[10]   runs      hash, schedule to the history of its runs
-- KEYS[11]   keyed     hash, job ID to its place in a lane
-- KEYS[12]   next      hash, running job ID to the successor that it will have
-- KEYS[13]   notes     hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[14]   parcels   zset, what is on the way to other topics, by target and number
-- KEYS[15]   plans     hash, target to the plan by which its parcels are delivered
-- ARGV[1]    number    number of this call in its series
-- ARGV[2]    counter   the counter of these jobs: acked or expired
-- ARGV[3..]  jobs      rows (see prelude/settle.lua) with no values, or with three: how long the
--                      job is kept in ms (0: not), a netstring about the run that precedes the
--                      record, with the output that follows it, and the run's entry for runs
--                      (empty: none). The netstring can be there though the job is not kept, for
--                      those who wait for it
--
-- At most 1,000 jobs a call. Send no more than about 1 MiB of records to keep, beyond the first
-- one, because they are copied.
-- Returns {'ok', now, letters}: o for done, l for lost, g for gone; no letters if all are done. q
-- for left alone, because the job has a successor: again ends it.
-- Cost: O(jobs × log N).
-- Uses: now receipt stats lease owns settle retain history handed
local leases, pool, attempts, errors, moved = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local done, results, stats, receipt, runs = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local keyed, next, notes = KEYS[11], KEYS[12], KEYS[13]
local parcels, plans = KEYS[14], KEYS[15]
local number, counter, jobs, first = ARGV[1], ARGV[2], ARGV, 3

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local ids, where, letters = rows(leases, pool, jobs, first)
local books = #ids > 0 and redis.call('EXISTS', attempts, errors, moved, keyed, next, notes) > 0
local others = books and redis.call('EXISTS', next, notes, notes) or 0 -- 1: next, 2: notes, 3: both
if others % 2 == 1 then
  -- Uses: followed spare
  local has, any = followed(next, ids)
  if any then
    ids, where, letters = spare(ids, where, letters, has)
  end
end
if #ids > 0 then
  redis.call('HDEL', moved, '') -- after a deletion, the script can write at maxmemory
  if handed.over then -- before anybody is told that the jobs have ended
    handed.over(jobs, where, ids)
  end
  for i, id in ipairs(ids) do
    if where[i] and jobs[where[i]] ~= '0' then
      retain(pool, results, done, id, jobs[where[i]], jobs[where[i] + 1])
    end
  end
  if others > 1 then
    -- Uses: control look ended outcome
    local tell = endings(notes, pool, stats, look, function()
      -- Uses: parcels post link
      return reporter(notes, parcels, plans)
    end)
    tell.jobs(ids, function(i, id)
      return outcome_of(counter, id, attempts, where[i] and jobs[where[i] + 1] or '')
    end)
    tell.close()
  end
  release(leases, ids)
  redis.call('HDEL', pool, unpack(ids))
  if books then
    -- Uses: close_books
    redis.pcall('HDEL', keyed, unpack(ids))
    if redis.call('EXISTS', attempts, errors, moved) > 0 then
      close_books(attempts, errors, moved, ids)
    end
  end
  for i, id in ipairs(ids) do
    if where[i] and jobs[where[i] + 2] ~= '' then
      ran(runs, id, counter == 'expired' and 1 or 0, jobs[where[i] + 2])
    end
  end
end
count(stats, counter, #ids)
remember(receipt, number, letters)
return {'ok', now, letters}
