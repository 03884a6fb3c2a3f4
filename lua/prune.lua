-- prune: removes the dead that are too many or too old, and the done that have been kept long enough. Counts the jobs that must be lost.
--
-- KEYS[1]  pool      hash, job id to record
-- KEYS[2]  dead      zset, job id scored by the time of burial
-- KEYS[3]  attempts  hash, job id to finished attempts
-- KEYS[4]  errors    hash, job id to its last errors
-- KEYS[5]  moved     hash, job id to its present due time, if that is not the record's
-- KEYS[6]  done      zset, job id scored by the time until which it is kept
-- KEYS[7]  results   hash, job id to what is kept of it
-- KEYS[8]  stats     hash, counter to number
-- KEYS[9]  bucket    zset, job id scored by due time (Unix ms)
-- KEYS[10] leases    zset, job id scored by the end of its lease
-- KEYS[11] ready     list of job ids, next one at the head
-- KEYS[12] handoff   list of job ids between a server's wait and its take
-- ARGV[1]  most      most dead jobs to keep
-- ARGV[2]  age       ms, how long a dead job is kept
-- ARGV[3]  limit     most jobs of each kind to remove, at most 1000 (unpack has a stack limit)
--
-- The books are touched with call here, unlike elsewhere: this is where one that cannot be read or written comes to light.
-- Returns {'ok', now, removed, missing}: removed of limit or more means ask again; missing is how many records there are more than places,
-- in good health 0. Cost: O(limit × log N).
local pool, dead, attempts, errors, moved = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local done, results, stats = KEYS[6], KEYS[7], KEYS[8]
local bucket, leases, ready, handoff = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local most, age, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local old = redis.call('ZRANGEBYSCORE', dead, '-inf', now - age, 'LIMIT', 0, limit)
if #old == 0 then
  local over = math.min(redis.call('ZCARD', dead) - most, limit)
  if over > 0 then
    old = redis.call('ZRANGE', dead, 0, over - 1)
  end
end
if #old > 0 then
  redis.call('HDEL', pool, unpack(old))
  redis.call('HDEL', attempts, unpack(old))
  redis.call('HDEL', errors, unpack(old))
  redis.call('HDEL', moved, unpack(old))
  redis.call('ZREM', dead, unpack(old))
end

local kept = redis.call('ZRANGEBYSCORE', done, '-inf', now, 'LIMIT', 0, limit)
if #kept > 0 then
  redis.call('HDEL', results, unpack(kept))
  redis.call('ZREM', done, unpack(kept))
end
for _, book in ipairs({attempts, errors, moved}) do
  redis.call('HLEN', book)
end
redis.call('HINCRBY', stats, 'pruned', #old + #kept)
local places = redis.call('ZCARD', bucket) + redis.call('ZCOUNT', leases, '-inf', 9999999999999) + redis.call('ZCARD', dead)
  + redis.call('LLEN', ready) + redis.call('LLEN', handoff)
return {'ok', now, #old + #kept, math.max(0, redis.call('HLEN', pool) - places)}
