-- prune: removes the dead that are too many or too old, and the done that have been kept long
-- enough. Counts the jobs that must be lost.
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
-- KEYS[13] sizes     hash, the size of the largest record
-- KEYS[14] receipt   string, the last call of the series that removed something, and its reply
-- ARGV[1]  number    number of this call in its series
-- ARGV[2]  most      most dead jobs to keep
-- ARGV[3]  age       ms, how long a dead job is kept
-- ARGV[4]  limit     most jobs of each kind to remove, at most 1000 (unpack has a stack limit)
--
-- When ready is far longer than the jobs in it, the left-overs among its first and its last ids are
-- removed. What needs a key of a wrong type is left out. Here such a key, also one that only serves
-- bookkeeping, comes to light.
-- Returns {'ok', now, dead, done, missing, wrong, trimmed}: how many of each kind this call has
-- removed, and how many left-overs of ready; limit of one kind means ask again. missing is how many
-- records there are more than places, or places in bucket and dead more than records, in good
-- health 0; wrong lists the keys of a wrong type. A call that is sent again removes no job and
-- answers the same numbers of removed jobs, so that none goes unreported.
-- Cost: O(limit × log N).
-- Uses: now receipt measure
local pool, dead, attempts, errors, moved = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local done, results, stats = KEYS[6], KEYS[7], KEYS[8]
local bucket, leases, ready, handoff = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local sizes, receipt = KEYS[13], KEYS[14]
local number, most, age, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local told = replay(receipt, number)

local records, buried, finished, kept = measure('HLEN', pool), measure('ZCARD', dead), measure('ZCARD', done), measure('HLEN', results)
local delayed, leased, waits = measure('ZCARD', bucket), measure('ZCARD', leases), measure('LLEN', ready)
local handed, counters, noted = measure('LLEN', handoff), measure('HLEN', stats), measure('HLEN', sizes)
local books = {}
for _, book in ipairs({attempts, errors, moved}) do
  if measure('HLEN', book) >= 0 then
    books[#books + 1] = book
  end
end

local old, over = {}, {}
if not told and records >= 0 and buried > 0 then
  old = redis.call('ZRANGEBYSCORE', dead, '-inf', now - age, 'LIMIT', 0, limit)
  if #old == 0 and buried > most then
    old = redis.call('ZRANGE', dead, 0, math.min(buried - most, limit) - 1)
  end
end
if #old > 0 then
  redis.call('HDEL', pool, unpack(old))
  for _, book in ipairs(books) do
    redis.call('HDEL', book, unpack(old))
  end
  redis.call('ZREM', dead, unpack(old))
end

if records == 0 and noted > 0 then
  redis.call('DEL', sizes)
end

if not told and finished > 0 and kept >= 0 then
  over = redis.call('ZRANGEBYSCORE', done, '-inf', now, 'LIMIT', 0, limit)
end
if #over > 0 then
  redis.call('HDEL', results, unpack(over))
  redis.call('ZREM', done, unpack(over))
end
if counters >= 0 then
  if #old > 0 then
    redis.call('HINCRBY', stats, 'pruned_dead', #old)
  end
  if #over > 0 then
    redis.call('HINCRBY', stats, 'pruned_done', #over)
  end
end

-- trim removes from one end of ready what take would drop, and of an id that stands there twice the
-- later entry.
local function trim(ids)
  local delayed_at, leased_to = redis.call('ZMSCORE', bucket, unpack(ids)), redis.call('ZMSCORE', leases, unpack(ids))
  local buried_at, seen, left = redis.call('ZMSCORE', dead, unpack(ids)), {}, {}
  for i, id in ipairs(ids) do
    local gone = seen[id] or delayed_at[i] or leased_to[i] or buried_at[i]
    if not gone and redis.call('HEXISTS', pool, id) == 1 then
      seen[id], left[#left + 1] = true, id
    end
  end
  return left
end

local missing, trimmed = 0, 0
if math.min(records, buried, delayed, leased, waits, handed) >= 0 then
  local taken = redis.call('ZCOUNT', leases, '-inf', 9999999999999)
  local places = delayed + taken + buried + waits + handed
  missing = math.max(0, records - places, delayed + buried - records) -- of those that were pruned both are counted
  if waits > 2 * (records - delayed - taken - buried) + 1000 then
    local first = redis.call('LRANGE', ready, 0, limit - 1)
    local left = trim(first)
    if #left < #first then
      redis.call('LTRIM', ready, #first, -1)
      for i = #left, 1, -1 do
        redis.call('LPUSH', ready, left[i])
      end
    end
    local last = redis.call('LRANGE', ready, -limit, -1)
    trimmed = #first - #left + #last
    left = #last > 0 and trim(last) or last
    if #left < #last then
      redis.call('LTRIM', ready, 0, -#last - 1)
      if #left > 0 then
        redis.call('RPUSH', ready, unpack(left))
      end
    end
    trimmed = trimmed - #left
  end
end
if told then
  local gone, ended = string.match(told, '^(%d+) (%d+)$')
  return {'ok', now, tonumber(gone or 0), tonumber(ended or 0), missing, wrong, trimmed}
end
if #old + #over > 0 then
  remember(receipt, number, #old .. ' ' .. #over)
end
return {'ok', now, #old, #over, missing, wrong, trimmed}
