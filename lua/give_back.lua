-- give_back: gives jobs back to the head of ready because their server does not run them. No
-- attempt is used up.
--
-- KEYS[1]    leases   zset, job ID scored by the end of its lease
-- KEYS[2]    ready    list of job IDs, next one at the head
-- KEYS[3]    stats    hash, counter to number
-- KEYS[4]    receipt  string, the last call of the series and its reply
-- KEYS[5]    pool     hash, job ID to record
-- ARGV[1]    number   number of this call in its series
-- ARGV[2..]  jobs     rows (see prelude/settle.lua) with no values, in the order in which the jobs
--                     run
--
-- At most 1,000 jobs a call.
-- Returns {'ok', now, letters}: o for given back, l for lost, g for gone; no letters if all are
-- given back.
-- Cost: O(jobs × log N).
-- Uses: now receipt stats lease settle
local leases, ready, stats, receipt, pool = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local number, jobs, first = ARGV[1], ARGV, 2

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local ids, _, letters = rows(leases, pool, jobs, first)
if #ids > 0 then
  redis.call('ZREM', leases, '') -- after a deletion, the script can write at maxmemory
  for i = #ids, 1, -1 do
    redis.call('LPUSH', ready, ids[i])
  end
  release(leases, ids)
end
count(stats, 'returned', #ids)
remember(receipt, number, letters)
return {'ok', now, letters}
