-- get: reads all that is known of jobs. Writes nothing.
--
-- KEYS[1]   pool      hash, job id to record
-- KEYS[2]   bucket    zset, job id scored by due time (Unix ms)
-- KEYS[3]   leases    zset, job id scored by the end of its lease
-- KEYS[4]   dead      zset, job id scored by the time of burial
-- KEYS[5]   attempts  hash, job id to finished attempts
-- KEYS[6]   errors    hash, job id to its last errors
-- KEYS[7]   moved     hash, job id to its present due time, if that is not the record's
-- KEYS[8]   done      zset, job id scored by the time until which it is kept
-- KEYS[9]   results   hash, job id to what is kept of it
-- ARGV[1]   bytes     how many bytes of records, errors and results to read at most, but one job in any case; 0: no limit
-- ARGV[2..] ids       the jobs, at most 1,000
--
-- Returns {'ok', now, records, due times, lease ends, burials, attempts, errors, moved, kept until, results}: nine lists,
-- each with one value (or nothing) a job; with bytes maybe not of all jobs, but of the first ones. Cost: O(jobs).
local pool, bucket, leases, dead, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local errors, moved, done, results = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local bytes, ids, first = tonumber(ARGV[1]), ARGV, 2

local some, size = {}, 0
for i = first, #ids do
  if bytes > 0 then
    for _, hash in ipairs({pool, errors, results}) do
      size = size + redis.call('HSTRLEN', hash, ids[i])
    end
    if size > bytes and i > first then
      break
    end
  end
  some[#some + 1] = ids[i]
end

return {
  'ok', now,
  redis.call('HMGET', pool, unpack(some)),
  redis.call('ZMSCORE', bucket, unpack(some)),
  redis.call('ZMSCORE', leases, unpack(some)),
  redis.call('ZMSCORE', dead, unpack(some)),
  redis.call('HMGET', attempts, unpack(some)),
  redis.call('HMGET', errors, unpack(some)),
  redis.call('HMGET', moved, unpack(some)),
  redis.call('ZMSCORE', done, unpack(some)),
  redis.call('HMGET', results, unpack(some)),
}
