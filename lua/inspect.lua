-- inspect: reports what is due in a topic and has not started. Writes nothing.
--
-- KEYS[1]  pool    hash, job ID to record
-- KEYS[2]  bucket  zset, job ID scored by due time (Unix ms)
-- KEYS[3]  leases  zset, job ID scored by the end of its lease
-- KEYS[4]  dead    zset, job ID scored by the time of burial
-- KEYS[5]  ready   list of job IDs, next one at the head
-- KEYS[6]  moved   hash, job ID to its current due time, if it differs from the record's
--
-- Returns {'ok', now, how many of bucket are due, first}: first has the entry in moved and the
-- first 43 bytes of the record of the first ready job among the first 20 entries, if there is one.
-- Jobs with records of more than 16 KiB are passed over, because Redis would have to copy all of
-- one.
-- Cost: O(log N).
-- Uses: now
local pool, bucket, leases, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ready, moved = KEYS[5], KEYS[6]

local first = {}
local entries = redis.call('LRANGE', ready, 0, 19)
for _, id in ipairs(entries) do
  local elsewhere = redis.call('ZSCORE', bucket, id) or redis.call('ZSCORE', leases, id)
    or redis.call('ZSCORE', dead, id)
  local size = elsewhere and 0 or redis.call('HSTRLEN', pool, id)
  if size > 0 and size <= 16384 then
    local record = redis.call('HGET', pool, id)
    first = {redis.call('HGET', moved, id) or '', string.sub(record, 1, 43)}
    break
  end
end

return {'ok', now, redis.call('ZCOUNT', bucket, 0, now), first}
