-- snooze: puts jobs back into bucket because their handlers asked for it. No attempt is used up.
--
-- KEYS[1]    leases   zset, job ID scored by the end of its lease
-- KEYS[2]    bucket   zset, job ID scored by due time (Unix ms)
-- KEYS[3]    moved    hash, job ID to its current due time, if it differs from the record's
-- KEYS[4]    stats    hash, counter to number
-- KEYS[5]    receipt  string, the last call of the series and its reply
-- KEYS[6]    pool     hash, job ID to record
-- KEYS[7]    keyed    hash, job ID to its place in a lane
-- KEYS[8]    sizes    hash, the size of the largest record, and the number of the last place
-- ARGV[1]    number   number of this call in its series
-- ARGV[2..]  jobs     rows (see prelude/settle.lua) of two values: delay in ms, and the tally for
--                     its entry in moved: "<spent> <snoozes> <revived>"
--
-- At most 1,000 jobs a call.
-- Returns {'ok', now, letters}: o for put back, l for lost, g for gone; no letters if all are put
-- back.
-- Cost: O(jobs × log N).
-- Uses: now receipt stats lease settle place reseat put_back
local leases, bucket, moved = KEYS[1], KEYS[2], KEYS[3]
local stats, receipt, pool, keyed, sizes = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local number, jobs, first = ARGV[1], ARGV, 2

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local ids, where, letters = rows(leases, pool, jobs, first)
if #ids > 0 then
  redis.call('ZREM', bucket, '') -- after a deletion, the script can write at maxmemory
  local dues = delays(jobs, ids, where)
  reseat(keyed, sizes, ids, dues)
  put_back(leases, bucket, moved, jobs, ids, where, dues, 'snooze')
end
count(stats, 'snoozed', #ids)
remember(receipt, number, letters)
return {'ok', now, letters}
