-- inspect: counts the entries of a topic. Writes nothing.
--
-- KEYS[1]    pool       hash, job ID to record
-- KEYS[2]    bucket     zset, job ID scored by due time (Unix ms)
-- KEYS[3]    leases     zset, job ID scored by the end of its lease
-- KEYS[4]    dead       zset, job ID scored by the time of burial
-- KEYS[5]    done       zset, job ID scored by the time it is kept until
-- KEYS[6]    meta       hash, settings of the topic made by operators
-- KEYS[7]    stats      hash, counter to number
-- KEYS[8]    schedules  hash, schedule to definition
-- KEYS[9]    slots      zset, schedule scored by its next slot (Unix ms)
-- KEYS[10]   waiting    zset, schedule scored by the slot that waits for its last run to finish
-- KEYS[11]   attempts   hash, job ID to number of finished attempts
-- KEYS[12]   ready      list of job IDs, next one at the head
-- KEYS[13]   moved      hash, job ID to its current due time, if it differs from the record's
-- ARGV[1..]  counters   the counters to read
--
-- Returns {'ok', now, sizes of pool, bucket, leases, dead and done, head of bucket with its score,
-- {paused, until, pauses}, counters, sizes of schedules and waiting, head of slots with its score,
-- size of attempts, how many of bucket are due, first}: first has the entry in moved and the first
-- 43 bytes of the record of the first ready job among the first 20 entries, if there is one. Jobs
-- with records of more than 16 KiB are passed over, because Redis would have to copy all of one.
-- Cost: O(log N).
-- Uses: now
local pool, bucket, leases, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local done, meta, stats = KEYS[5], KEYS[6], KEYS[7]
local schedules, slots, waiting = KEYS[8], KEYS[9], KEYS[10]
local attempts, ready, moved = KEYS[11], KEYS[12], KEYS[13]
local counters = ARGV

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

return {
  'ok', now,
  redis.call('HLEN', pool),
  redis.call('ZCARD', bucket),
  redis.call('ZCOUNT', leases, 0, 9999999999999), -- not the anchor
  redis.call('ZCARD', dead),
  redis.call('ZCARD', done),
  redis.call('ZRANGE', bucket, 0, 0, 'WITHSCORES'),
  redis.call('HMGET', meta, 'paused', 'until', 'pauses'),
  redis.call('HMGET', stats, unpack(counters)),
  redis.call('HLEN', schedules),
  redis.call('ZCARD', waiting),
  redis.call('ZRANGE', slots, 0, 0, 'WITHSCORES'),
  redis.call('HLEN', attempts),
  redis.call('ZCOUNT', bucket, 0, now),
  first,
}
