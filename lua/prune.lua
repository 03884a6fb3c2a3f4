-- prune: deletes dead jobs that are too many or too old, done jobs that are past their retention,
-- tombs that are over, and what is left over in notes. It also counts jobs that must have been
-- lost.
--
-- KEYS[1]   pool      hash, job ID to record
-- KEYS[2]   dead      zset, job ID scored by the time of burial
-- KEYS[3]   attempts  hash, job ID to number of finished attempts
-- KEYS[4]   errors    hash, job ID to its error log
-- KEYS[5]   moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[6]   done      zset, job ID scored by the time it is kept until
-- KEYS[7]   results   hash, job ID to its kept run and record
-- KEYS[8]   stats     hash, counter to number
-- KEYS[9]   bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[10]  leases    zset, job ID scored by the end of its lease
-- KEYS[11]  ready     list of job IDs, next one at the head
-- KEYS[12]  handoff   list of job IDs on the way from a server's wait to its take
-- KEYS[13]  sizes     hash, the size of the largest record
-- KEYS[14]  receipt   string, the last call of the series that deleted something, and its reply
-- KEYS[15]  idle      zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[16]  lane      zset, places of waiting jobs that have a key, each with the job ID
-- KEYS[17]  keyed     hash, job ID to its place in a lane
-- KEYS[18]  blockers  zset, place and ID of every job that its key waits for (see limits)
-- KEYS[19]  parked    zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[20]  turn      zset, key of waiting jobs scored by its pass
-- KEYS[21]  tombs     zset, closed job ID scored by when it is free again (Unix ms)
-- KEYS[22]  notes     hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[23]  parcels   zset, what is on the way to other topics, by target and number
-- KEYS[24]  plans     hash, target to the plan by which its parcels are delivered
-- KEYS[25]  next      hash, running job ID to the successor that it will have
-- ARGV[1]   number    number of this call in its series
-- ARGV[2]   most      most dead jobs to keep
-- ARGV[3]   age       ms, how long a dead job is kept
-- ARGV[4]   limit     most jobs of each kind to delete, at most 1,000 (unpack has a stack limit)
-- ARGV[5]   from      0, or the next of the call before: the rank of the first dead job to look at
-- ARGV[6]   channel   the control channel
-- ARGV[7]   topic     the topic's name, for the control channel
--
-- A dead job whose record is of a later release is left to servers of that release, which may have
-- to do more. So the script reads the records of the dead jobs that it looks at. A call looks at
-- limit of them at most, and reads 1 MiB of records at most, or one record. The next call goes on
-- behind those that are left. The oldest jobs of this release are deleted.
-- If ready is far longer than its number of jobs, the leftovers among its first and last IDs are
-- removed. So are names that have been in idle for more than an hour. Keys that waited for deleted
-- jobs get turns. Work that needs a key of a wrong type is left out. Such keys, even those for
-- bookkeeping only, are reported here.
-- Returns {'ok', now, dead, done, missing, wrong, trimmed, more, next, freed, rest}: how many jobs
-- of each kind this call deleted, how many leftovers of ready and how many tombs. limit of one kind
-- means ask again. more is 1 if too many or too old dead jobs are left that the call has not looked
-- at, and next is the from to go on with. At the end of the walk both are 0, so that the next one
-- begins anew. missing is how many more records there are than places, or how many more places in
-- bucket and dead than records; 0 in a healthy topic. wrong lists the keys of a wrong type. rest is
-- 1 if much was left over in notes and the call has not looked at all of it: ask again. A repeated
-- call deletes no job and returns the same numbers of deleted jobs, more and next, so that every
-- deletion is reported and the walk goes on.
-- Cost: O(limit × log N).
-- Uses: now receipt control ring stats measure census place rouse free_keys unblock
local pool, dead, attempts, errors, moved = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local done, results, stats = KEYS[6], KEYS[7], KEYS[8]
local bucket, leases, ready, handoff = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local sizes, receipt, idle, lane = KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local keyed, blockers, parked, turn = KEYS[17], KEYS[18], KEYS[19], KEYS[20]
local tombs, notes, parcels, plans = KEYS[21], KEYS[22], KEYS[23], KEYS[24]
local next = KEYS[25]
local number, most, age, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local from, channel, topic = tonumber(ARGV[5]), ARGV[6], ARGV[7]

-- reports is for endings.
local function reports()
  -- Uses: parcels post link
  return reporter(notes, parcels, plans)
end

local told = replay(receipt, number)

local records, buried = measure('HLEN', pool), measure('ZCARD', dead)
local finished, kept = measure('ZCARD', done), measure('HLEN', results)
local delayed, leased = measure('ZCARD', bucket), measure('ZCARD', leases)
local waits, handed = measure('LLEN', ready), measure('LLEN', handoff)
local counters, noted = measure('HLEN', stats), measure('HLEN', sizes)
local idlers, laned = measure('ZCARD', idle), measure('ZCARD', lane)
local blocked, turns = measure('ZCARD', blockers), measure('ZCARD', turn)
local stopped, placed = measure('ZCARD', parked), measure('HLEN', keyed)
local shut, written = measure('ZCARD', tombs), measure('HLEN', notes)
measure('ZCARD', parcels)
measure('HLEN', plans)
measure('HLEN', next)
local books = {}
for _, book in ipairs({attempts, errors, moved}) do
  if measure('HLEN', book) >= 0 then
    books[#books + 1] = book
  end
end
if placed >= 0 then
  books[#books + 1] = keyed
end

-- walk looks at dead jobs from a rank on, the oldest first. It returns those to delete, the rank of
-- the next call, and whether there may be more to delete.
local function walk(rank)
  local aged, over = redis.call('ZCOUNT', dead, '-inf', now - age), buried - most
  local list, by_age, looked, read, full = {}, 0, 0, 0, false
  if rank >= buried or rank >= aged and over <= 0 then
    rank = 0 -- the dead jobs are fewer than when the caller got this rank
  end
  while not full and looked < limit and rank < buried do
    local wanted = aged - rank
    if wanted <= 0 then
      wanted = by_age == 0 and over - #list or 0
    end
    if wanted <= 0 then
      break
    end
    wanted = math.min(wanted, limit - looked)
    for _, id in ipairs(redis.call('ZRANGE', dead, rank, rank + wanted - 1)) do
      local size = redis.call('HSTRLEN', pool, id)
      if read > 0 and read + size > 1048576 then
        full = true
        break
      end
      read = read + size
      local version = string.byte(redis.call('HGET', pool, id) or '', 9)
      if (version or 0) <= 6 then
        list[#list + 1] = id
        by_age = rank < aged and #list or by_age
      end
      looked, rank = looked + 1, rank + 1
    end
  end
  if rank >= buried or rank >= aged and over <= #list then
    return list, 0, 0
  end
  return list, rank - #list, 1
end

local old, over, next_from, more = {}, {}, 0, 0
if not told and records >= 0 and buried > 0 then
  old, next_from, more = walk(from)
end
local freed = 0
if #old > 0 then
  if written > 0 then
    -- Uses: look ended log_of
    local tell = endings(notes, pool, stats, look, reports)
    tell.jobs(old, log_of(errors), false, true)
    tell.close()
  end
  redis.call('HDEL', pool, unpack(old))
  if blocked > 0 and math.min(placed, stopped, turns, laned, waits) >= 0 then
    local places = redis.call('HMGET', keyed, unpack(old))
    freed = unblock(blockers, parked, turn, lane, ready, old, places)
  end
  for _, book in ipairs(books) do
    redis.call('HDEL', book, unpack(old))
  end
  redis.call('ZREM', dead, unpack(old))
end
if freed > 0 then
  ring(idle, channel, topic, freed)
end

if records == 0 and noted > 0 then
  redis.call('HDEL', sizes, 'largest', 'number') -- not what says that the topic has limits
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

-- trim returns the IDs from one end of ready that take would not drop, each at its first
-- occurrence.
local function trim(ids)
  local delayed_at = redis.call('ZMSCORE', bucket, unpack(ids))
  local leased_to = redis.call('ZMSCORE', leases, unpack(ids))
  local buried_at = redis.call('ZMSCORE', dead, unpack(ids))
  local seen, left = {}, {}
  for i, id in ipairs(ids) do
    local gone = seen[id] or delayed_at[i] or leased_to[i] or buried_at[i]
    if not gone and redis.call('HEXISTS', pool, id) == 1 then
      seen[id], left[#left + 1] = true, id
    end
  end
  return left
end

if idlers > 0 then
  local gone = redis.call('ZRANGEBYSCORE', idle, '-inf', now - wait_most, 'LIMIT', 0, limit)
  if #gone > 0 then
    redis.call('ZREM', idle, unpack(gone))
  end
end

local free = shut > 0 and redis.call('ZRANGEBYSCORE', tombs, '-inf', now, 'LIMIT', 0, limit) or {}
if #free > 0 then
  redis.call('ZREM', tombs, unpack(free))
end

local rest = 0
if written > 0 and records >= 0 and noted >= 0 then
  -- Uses: steps tidy successor stray prune_notes
  rest = prune_notes(2 * limit)
end

local missing, trimmed = 0, 0
if math.min(records, buried, delayed, leased, waits, handed, laned) >= 0 then
  local taken = redis.call('ZCOUNT', leases, '-inf', 9999999999999)
  -- The numbers of records and of places were read before the prune, so both include its jobs.
  missing = missing_of(records, delayed, taken, buried, waits, handed, laned)
  if littered(records, delayed, taken, buried, waits, handed, laned) then
    local first = redis.call('LRANGE', ready, 0, limit - 1)
    local left = #first > 0 and trim(first) or first
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
  local gone, ended, again, rank = string.match(told, '^(%d+) (%d+) (%d+) (%d+)$')
  old, over = tonumber(gone or 0), tonumber(ended or 0)
  return {'ok', now, old, over, missing, wrong, trimmed, tonumber(again or 0), tonumber(rank or 0),
    #free, rest}
end
if #old + #over > 0 then
  remember(receipt, number, table.concat({#old, #over, more, next_from}, ' '))
end
return {'ok', now, #old, #over, missing, wrong, trimmed, more, next_from, #free, rest}
