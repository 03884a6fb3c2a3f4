-- get: reads all data of jobs. Writes nothing.
--
-- KEYS[1]    pool      hash, job ID to record
-- KEYS[2]    bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[3]    leases    zset, job ID scored by the end of its lease
-- KEYS[4]    dead      zset, job ID scored by the time of burial
-- KEYS[5]    attempts  hash, job ID to number of finished attempts
-- KEYS[6]    errors    hash, job ID to its error log
-- KEYS[7]    moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[8]    done      zset, job ID scored by the time it is kept until
-- KEYS[9]    results   hash, job ID to its kept run and record
-- KEYS[10]   keyed     hash, job ID to its place in a lane, for jobs that have a key
-- KEYS[11]   notes     hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[12]   tombs     zset, closed job ID scored by when it is free again (Unix ms)
-- ARGV[1]    bytes     how many bytes of records, errors, results and notes to read at most; always
--                      at least one job
-- ARGV[2]    cut       how many bytes of each record to return, -1 for all
-- ARGV[3..]  ids       the jobs, at most 1,000
--
-- Redis cannot read a part of a hash value. With cut, the script reads the whole record and returns
-- a part of it.
-- Returns {'ok', now, records, due times, lease ends, burials, attempts, errors, moved, kept until,
-- results, places, notes, elsewhere}: eleven lists. Each has one value (or nothing) for each of the
-- first jobs, as many as bytes allows. A note counts only if it has the nonce of the record.
-- elsewhere is 1 if one of these jobs has no record in pool, and the topic is a closed place of one
-- that has partitions; otherwise 0.
-- Cost: O(jobs).
-- Uses: now
local pool, bucket, leases, dead, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local errors, moved, done, results, keyed = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local notes, tombs = KEYS[11], KEYS[12]
local bytes, cut = tonumber(ARGV[1]), tonumber(ARGV[2])
local ids, first = ARGV, 3

local some, size, fields = {}, 0, {}
local noted = redis.call('EXISTS', notes) == 1
  and type(redis.pcall('HEXISTS', notes, '')) == 'number' -- one of a wrong type has none
for i = first, #ids do
  for _, hash in ipairs({pool, errors, results}) do
    size = size + redis.call('HSTRLEN', hash, ids[i])
  end
  if noted then
    size = size + redis.call('HSTRLEN', notes, 'p' .. ids[i])
  end
  if size > bytes and i > first then
    break
  end
  some[#some + 1], fields[#fields + 1] = ids[i], 'p' .. ids[i]
end

-- cut_all cuts the values of a list to a number of bytes.
local function cut_all(list, most)
  for i = 1, #some do
    list[i] = list[i] and string.sub(list[i], 1, most)
  end
  return list
end

local records = redis.call('HMGET', pool, unpack(some))
local kept = redis.call('HMGET', results, unpack(some))
if cut >= 0 then
  -- A result is up to 1 KiB about the run, and then the record.
  records, kept = cut_all(records, cut), cut_all(kept, cut + 1024)
end
local places = redis.pcall('HMGET', keyed, unpack(some)) -- one of a wrong type has none
local elsewhere = 0
for i = 1, #some do
  if not records[i] then -- one of a wrong type closes nothing
    elsewhere = type(redis.pcall('ZSCORE', tombs, '')) == 'string' and 1 or 0
    break
  end
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
  places.err and {} or places,
  noted and redis.call('HMGET', notes, unpack(fields)) or {},
  elsewhere,
}
