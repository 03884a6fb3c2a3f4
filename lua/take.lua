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
-- KEYS[10]  receipt   list of this taker: number, lease end and more of its last take, then the ids it got
-- KEYS[11]  stats     hash, counter to number
-- KEYS[12]  sizes     hash, the size of the largest record
-- ARGV[1]   number    number of this take, higher than that of the one before
-- ARGV[2]   since     number of the first take that the server has had no answer to; this number: it has had all
-- ARGV[3]   limit     most jobs to take, at most 1000 (unpack has a stack limit). 0: give back what those takes have got
-- ARGV[4]   bytes     most bytes of records to answer; one job in any case
-- ARGV[5]   lease     length of the lease in ms
-- ARGV[6]   free      how many will be started at once: beyond that no job of limited retries is taken, which
--                     flag 1 of its record tells, because a crash counts as an attempt of every job that was taken
-- ARGV[7]   place     where the jobs go that are given back: head or tail of ready
--
-- An id counts only if it has a record and is in neither bucket nor leases nor dead. All others are left-overs of a cancel,
-- a reschedule or a second push, and are dropped here; so is the empty id, which only wakes. At most 1,000 are looked at.
--
-- A server that has had no answer asks again, with a new number and for fewer jobs. If one of the takes since then was carried out,
-- its receipt names the jobs. As many as fit are answered, with a lease that begins now; the others go back, in their order, and no
-- attempt is used up. A request that arrives twice is answered as it was the first time. One that comes after a later one does nothing.
--
-- Returns {'ok', now, lease end (a score), ids, records, attempts, moved, more}, attempts and moved false when no job of the topic
-- has any; more is 1 when bytes ended the take or jobs were given back: there is more to take. {'empty', now}, {'full', now} (jobs of
-- limited retries wait for a free slot), {'paused', now, until when or 0}, or with limit 0 {'returned', now, ids}. No ids with 'ok'
-- means: ask again.
-- Cost: O(limit × log N), and no more than bytes, or one record, are read.
-- Uses: now stats lease
local ready, handoff, pool, bucket, leases, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local attempts, moved, meta, receipt, stats, sizes = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local number, since, limit, bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local lease, free, place = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]

-- answer adds what is known of the jobs beside their records. With pcall: it is not worth losing the jobs for.
local function answer(lease_end, ids, records, more)
  local tried, due = false, false
  if #ids > 0 and redis.call('EXISTS', attempts, moved) > 0 then
    tried = redis.pcall('HMGET', attempts, unpack(ids))
    due = redis.pcall('HMGET', moved, unpack(ids))
  end
  return {'ok', now, lease_end, ids, records, tried and not tried.err and tried, due and not due.err and due, more and 1 or 0}
end

-- note leaves the receipt. With pcall: at worst the jobs wait until their leases are over.
local function note(lease_end, more, ids)
  redis.pcall('DEL', receipt)
  redis.pcall('RPUSH', receipt, number, lease_end, more and 1 or 0, unpack(ids))
  redis.pcall('PEXPIRE', receipt, lease)
end

-- The end has the microseconds of the present: so no two leases of a job end at the same time, and a fence names one of them.
local lease_end = string.format('%.0f.%03d', now + lease, time[2] % 1000)

local last = tonumber(redis.call('LINDEX', receipt, 0) or nil)
if last and last > tonumber(number) then
  return {'empty', now} -- given up by the server, and late: see prelude/receipt.lua
end
if last and last >= since then
  local kept = redis.call('LRANGE', receipt, 1, -1)
  local old_end, more = table.remove(kept, 1), table.remove(kept, 1) == '1'
  local twice = last == tonumber(number)
  if limit == 0 and twice then
    return {'returned', now, kept}
  end
  local ids, back, read = {}, {}, 0
  local ends = #kept > 0 and redis.call('ZMSCORE', leases, unpack(kept)) or {}
  for i, id in ipairs(kept) do
    local ours = ends[i] and tonumber(ends[i]) == tonumber(old_end)
    local size = ours and redis.call('HSTRLEN', pool, id) or 0
    local fits = twice or #back == 0 and #ids < limit and (read == 0 or read + size <= bytes)
    if size > 0 and fits then
      read = read + size
      ids[#ids + 1] = id
    elseif size > 0 then
      back[#back + 1] = id
    end
  end
  if not twice then
    more = #back > 0
    redis.call('ZREM', leases, '') -- having deleted, the script may write at maxmemory
    if #back > 0 then
      if place == 'tail' then
        redis.call('RPUSH', ready, unpack(back))
      else
        local reversed = {}
        for i, id in ipairs(back) do
          reversed[#back + 1 - i] = id
        end
        redis.call('LPUSH', ready, unpack(reversed))
      end
      release(leases, back)
      count(stats, 'returned', #back)
    end
    local grants = {}
    for _, id in ipairs(ids) do
      grants[#grants + 1] = lease_end
      grants[#grants + 1] = id
    end
    if #ids > 0 then
      redis.call('ZADD', leases, 'XX', unpack(grants))
      old_end = redis.call('ZSCORE', leases, ids[1]) -- as Redis writes it from now on
    end
    if limit == 0 then
      note(old_end, false, back)
      return {'returned', now, back}
    end
    note(old_end, more, ids)
  end
  if #ids > 0 then
    return answer(old_end, ids, redis.call('HMGET', pool, unpack(ids)), more)
  elseif twice then
    return {'empty', now}
  end
end
if since < tonumber(number) then
  note('0', false, {}) -- so that none of those takes gets anything if it comes after this one
end
if limit == 0 then
  return {'returned', now, {}}
end

local pause = redis.call('HMGET', meta, 'paused', 'until')
if pause[1] and (not pause[2] or now < tonumber(pause[2])) then
  return {'paused', now, tonumber(pause[2] or 0)}
end

-- scores looks up ids in a zset. Most topics have nobody among the dead, and often the bucket is empty as well: that costs nothing.
local function scores(zset, waiting)
  return redis.call('EXISTS', zset) == 1 and redis.call('ZMSCORE', zset, unpack(waiting)) or {}
end

-- Nearly always no lease has that end yet: then all that have it afterwards were leased by this call, and of many ids none has to be
-- looked up before.
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

-- wanted reads the records of those of the first n ids that count, one after the other as long as they are no more than bytes. It
-- returns how many ids that is.
local read = 0 -- bytes of the records that this call has read to answer them
local function wanted(waiting, n, most, found, delayed, buried, leased)
  local ids, places, total = {}, {}, read
  for i = 1, n do
    if #ids == most then
      n = i - 1
      break
    end
    local apart = delayed[i] or buried[i] or leased and leased[i]
    local size = apart and 0 or redis.call('HSTRLEN', pool, waiting[i])
    if size > 0 and total > 0 and total + size > bytes then
      n = i - 1
      break
    end
    if size > 0 then
      total = total + size
      ids[#ids + 1], places[#places + 1] = waiting[i], i
    end
  end
  for i, record in ipairs(#ids > 0 and redis.call('HMGET', pool, unpack(ids)) or {}) do
    found[places[i]] = record
  end
  return n
end

-- bounded tells whether n records may be more than bytes, with those that were read before, going by the largest there is.
local largest
local function bounded(n)
  if not largest then
    local noted = redis.pcall('HGET', sizes, 'largest')
    largest = type(noted) == 'table' and bytes or tonumber(noted or nil) or 2000
  end
  return read + n * largest > bytes
end

local ids, records, seen = {}, {}, {}
local got, looked, full, more = 0, 0, false, false
while got < limit and looked < 1000 and not full and not more do
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
  local delayed, buried, leased = scores(bucket, waiting), scores(dead, waiting), not alone and scores(leases, waiting)
  local found, all = {}, n
  if (n > 1 or read > 0) and bounded(n) then
    n = wanted(waiting, n, limit - got, found, delayed, buried, leased)
  else
    found = redis.call('HMGET', pool, unpack(waiting))
  end
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
      read = read + #record
      if not alone then
        seen[id] = true
      end
      grants[granted + 1], grants[granted + 2] = lease_end, id
      granted = granted + 2
    end
    used = i
  end
  more = n < all and got < limit and not full
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
  note(lease_end, more, ids)
  count(stats, 'taken', got)
end
return answer(lease_end, ids, records, more)
