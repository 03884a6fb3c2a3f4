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
-- ARGV[1]   bytes     how many bytes of records, errors and results to read at most, but one job in any case
-- ARGV[2]   cut       how many bytes of each record to answer, -1 for all
-- ARGV[3..] ids       the jobs, at most 1,000
--
-- Redis has no way to read a part of a record: with cut it is read in whole, and not sent.
-- Returns {'ok', now, records, due times, lease ends, burials, attempts, errors, moved, kept until, results}: nine lists,
-- each with one value (or nothing) for each of the first jobs, as many as bytes allows. Cost: O(jobs).
-- Uses: now
local pool, bucket, leases, dead, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local errors, moved, done, results = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local bytes, cut = tonumber(ARGV[1]), tonumber(ARGV[2])
local ids, first = ARGV, 3

local some, size = {}, 0
for i = first, #ids do
  for _, hash in ipairs({pool, errors, results}) do
    size = size + redis.call('HSTRLEN', hash, ids[i])
  end
  if size > bytes and i > first then
    break
  end
  some[#some + 1] = ids[i]
end

-- cut_all cuts what stands for each job, if there is anything.
local function cut_all(list, most)
  for i = 1, #some do
    list[i] = list[i] and string.sub(list[i], 1, most)
  end
  return list
end

local records, kept = redis.call('HMGET', pool, unpack(some)), redis.call('HMGET', results, unpack(some))
if cut >= 0 then
  records, kept = cut_all(records, cut), cut_all(kept, cut + 1024) -- the record, and before it up to 1 KiB about the run
end
return {
  'ok', now,
  records,
  redis.call('ZMSCORE', bucket, unpack(some)),
  redis.call('ZMSCORE', leases, unpack(some)),
  redis.call('ZMSCORE', dead, unpack(some)),
  redis.call('HMGET', attempts, unpack(some)),
  redis.call('HMGET', errors, unpack(some)),
  redis.call('HMGET', moved, unpack(some)),
  redis.call('ZMSCORE', done, unpack(some)),
  kept,
}
