-- take: leases jobs from the head of ready to one server.
--
-- KEYS[1]   ready     list of job ids, next one at the head
-- KEYS[2]   handoff   list of job ids between a server's wait and its take
-- KEYS[3]   pool      hash, job id to record
-- KEYS[4]   bucket    zset, job id scored by due time (Unix ms)
-- KEYS[5]   leases    zset, job id scored by the end of its lease
-- KEYS[6]   dead      zset, job id scored by the time of burial
-- KEYS[7]   attempts  hash, job id to finished attempts
-- KEYS[8]   moved     hash, job id to its present due time, if that is not the record's
-- KEYS[9]   meta      hash, what an operator has set for the topic
-- KEYS[10]  receipt   list of this taker: number and lease end of its last take, then the ids it got
-- KEYS[11]  stats     hash, counter to number
-- ARGV[1]   number    number of this take; a number sent again gets the same jobs again, as far as they are still its own
-- ARGV[2]   limit     most jobs to take, at most 1000 (unpack has a stack limit)
-- ARGV[3]   lease     length of the lease in ms
-- ARGV[4]   free      how many will be started at once: beyond that no job of limited retries is taken, which
--                     flag 1 of its record tells, for a crash counts as an attempt of every job that was taken
--
-- An id counts only if it has a record and is in neither bucket nor leases nor dead. All others are left-overs of a cancel,
-- a reschedule or a second push, and are dropped here; so is the empty id, which only wakes. At most 1,000 are looked at.
--
-- Returns {'ok', now, lease end (a score), ids, records, attempts, moved}, the last two false when no job of the topic has any,
-- {'empty', now}, {'full', now} (jobs of limited retries wait for a free slot) or {'paused', now, until when
-- or 0}. No ids with 'ok' means: ask again.
-- Cost: O(limit × log N).
local ready, handoff, pool, bucket, leases, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local attempts, moved, meta, receipt, stats = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local number, limit, lease, free = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

-- answer adds what is known of the jobs beside their records. With pcall: it is not worth losing the jobs for.
local function answer(lease_end, ids, records)
  local tried, due = false, false
  if #ids > 0 and redis.call('EXISTS', attempts, moved) > 0 then
    tried = redis.pcall('HMGET', attempts, unpack(ids))
    due = redis.pcall('HMGET', moved, unpack(ids))
  end
  return {'ok', now, lease_end, ids, records, tried and not tried.err and tried, due and not due.err and due}
end

local last = redis.call('LINDEX', receipt, 0)
if last and tonumber(last) > tonumber(number) then
  return {'empty', now} -- given up by the server, and late: see prelude/receipt.lua
end
if last == number then
  local kept = redis.call('LRANGE', receipt, 1, -1)
  local lease_end = table.remove(kept, 1)
  local scores = redis.call('ZMSCORE', leases, unpack(kept))
  local found = redis.call('HMGET', pool, unpack(kept))
  local ids, records = {}, {}
  for i, id in ipairs(kept) do
    if scores[i] and tonumber(scores[i]) == tonumber(lease_end) and found[i] then
      ids[#ids + 1] = id
      records[#records + 1] = found[i]
    end
  end
  return answer(lease_end, ids, records)
end

local pause = redis.call('HMGET', meta, 'paused', 'until')
if pause[1] and (not pause[2] or now < tonumber(pause[2])) then
  return {'paused', now, tonumber(pause[2] or 0)}
end

-- scores looks up ids in a zset. Most topics have nobody among the dead, and often the bucket is empty as well: that costs nothing.
local function scores(zset, waiting)
  return redis.call('EXISTS', zset) == 1 and redis.call('ZMSCORE', zset, unpack(waiting)) or {}
end

-- The end has the microseconds of the present: so no two leases of a job end at the same time, and a fence names one of them. Nearly
-- always no lease has that end yet: then all that have it afterwards were leased by this call, and of many ids none has to be looked
-- up before.
local lease_end = string.format('%.0f.%03d', now + lease, time[2] % 1000)
local alone = limit >= 8 and redis.call('ZCOUNT', leases, lease_end, lease_end) == 0

-- own keeps those of the first n ids that this call has leased, each once. The others had a lease already, and still have it.
local function own(ids, records, n)
  local ends, kept, seen = redis.call('ZMSCORE', leases, unpack(ids, 1, n)), 0, {}
  for i = 1, n do
    if ends[i] and tonumber(ends[i]) == tonumber(lease_end) and not seen[ids[i]] then
      kept = kept + 1
      seen[ids[i]], ids[kept], records[kept] = true, ids[i], records[i]
    end
  end
  for i = n, kept + 1, -1 do
    ids[i], records[i] = nil, nil
  end
  return kept
end

local ids, records, seen = {}, {}, {}
local got, looked, full = 0, 0, false
while got < limit and looked < 1000 and not full do
  -- Everything is read before anything is written: a key of a wrong type costs no id. After left-overs there may be many more.
  local most = looked == 0 and limit or math.min(math.max(limit - got, 64), 1000 - looked)
  local waiting = redis.call('LRANGE', handoff, 0, most - 1)
  local handed = #waiting
  if handed == 0 then
    waiting = redis.call('LRANGE', ready, 0, most - 1)
  elseif handed < most then
    for i, id in ipairs(redis.call('LRANGE', ready, 0, most - handed - 1)) do
      waiting[handed + i] = id
    end
  end
  local n = #waiting
  if n == 0 then
    break
  end
  local found = redis.call('HMGET', pool, unpack(waiting))
  local delayed, buried, leased = scores(bucket, waiting), scores(dead, waiting), not alone and scores(leases, waiting)
  local used, before = 0, got
  local grants, granted = {'NX', '+inf', anchor()}, 3
  for i = 1, n do
    local id, record = waiting[i], found[i]
    if got == limit then
      break
    end
    if record and not delayed[i] and not buried[i] and (alone or not leased[i] and not seen[id]) then
      full = got >= free and string.byte(record, 10) % 2 == 1 and not (alone and redis.call('ZSCORE', leases, id))
      if full then
        break
      end
      got = got + 1
      ids[got], records[got] = id, record
      if not alone then
        seen[id] = true
      end
      grants[granted + 1], grants[granted + 2] = lease_end, id
      granted = granted + 2
    end
    used = i
  end
  looked = looked + used
  if handed > 0 then
    redis.call('LTRIM', handoff, math.min(used, handed), -1)
  end
  if used > handed then
    redis.call('LTRIM', ready, used - handed, -1)
  end
  if got > before then -- after a deletion: so the script may write at maxmemory
    redis.call('ZADD', leases, unpack(grants))
    if alone and redis.call('ZCOUNT', leases, lease_end, lease_end) < got then
      got = own(ids, records, got)
      alone, full = false, false -- behind some left-overs there may be many: from here on each id is looked up before
    end
  end
end
if looked == 0 then
  return {full and 'full' or 'empty', now}
end
if got > 0 then
  lease_end = redis.call('ZSCORE', leases, ids[1]) -- as Redis writes it from now on
  redis.pcall('DEL', receipt)
  redis.pcall('RPUSH', receipt, number, lease_end, unpack(ids))
  redis.pcall('PEXPIRE', receipt, lease)
  count(stats, 'taken', got)
end
return answer(lease_end, ids, records)
