-- ack: ends jobs for good. Nothing of them is left, unless they ask to be kept as done.
--
-- KEYS[1]   leases    zset, job id scored by the end of its lease
-- KEYS[2]   pool      hash, job id to record
-- KEYS[3]   attempts  hash, job id to finished attempts
-- KEYS[4]   errors    hash, job id to its last errors
-- KEYS[5]   moved     hash, job id to its present due time, if that is not the record's
-- KEYS[6]   done      zset, job id scored by the time until which it is kept
-- KEYS[7]   results   hash, job id to what is kept of it
-- KEYS[8]   stats     hash, counter to number
-- KEYS[9]   receipt   string, the last call of the series and its reply
-- KEYS[10]  runs      hash, schedule to the history of its runs
-- ARGV[1]   number    number of this call in its series
-- ARGV[2]   counter   the counter these jobs go to: acked or expired
-- ARGV[3..] jobs      rows (see prelude/settle.lua) with no values, or with three: for how many ms it is to be kept (0: not), a netstring
--                     about the run, which the record is put behind, and what runs is to tell of the run (empty: nothing)
--
-- At most 1,000 jobs a call, and no more than about 1 MiB of records that are to be kept, beyond
-- the first one: they are copied. Returns {'ok', now, letters}: o for done, l for lost, g for gone, nothing for all done.
-- Cost: O(jobs × log N).
-- Uses: now receipt stats lease settle retain history
local leases, pool, attempts, errors, moved = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local done, results, stats, receipt, runs = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local number, counter, jobs, first = ARGV[1], ARGV[2], ARGV, 3

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local ids, where, letters = rows(leases, pool, jobs, first)
if #ids > 0 then
  redis.call('HDEL', moved, '') -- having deleted, the script may write at maxmemory
  for i, id in ipairs(ids) do
    if where[i] and jobs[where[i]] ~= '0' then
      retain(pool, results, done, id, jobs[where[i]], jobs[where[i] + 1])
    end
  end
  release(leases, ids)
  redis.call('HDEL', pool, unpack(ids))
  if redis.call('EXISTS', attempts, errors, moved) > 0 then
    redis.pcall('HDEL', attempts, unpack(ids))
    redis.pcall('HDEL', errors, unpack(ids))
    redis.pcall('HDEL', moved, unpack(ids))
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
