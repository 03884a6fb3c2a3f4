-- explain: reads what decides whether a job runs. Writes nothing.
--
-- KEYS[1]   pool      hash, job ID to record
-- KEYS[2]   bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[3]   leases    zset, job ID scored by the end of its lease
-- KEYS[4]   dead      zset, job ID scored by the time of burial
-- KEYS[5]   attempts  hash, job ID to number of finished attempts
-- KEYS[6]   errors    hash, job ID to its error log
-- KEYS[7]   moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[8]   done      zset, job ID scored by the time it is kept until
-- KEYS[9]   results   hash, job ID to its kept run and record
-- KEYS[10]  ready     list of job IDs, next one at the head
-- KEYS[11]  handoff   list of job IDs on the way from a server's wait to its take
-- KEYS[12]  meta      hash, settings of the topic made by operators
-- KEYS[13]  lane      zset, places of waiting jobs that have a key, each with the job ID
-- KEYS[14]  turn      zset, key of waiting jobs scored by its pass
-- KEYS[15]  keyed     hash, job ID to its place in a lane, for jobs that have a key
-- KEYS[16]  held      zset, key scored by the end of its hold (Unix ms)
-- KEYS[17]  operator  none, never exists: a client without rights to it cannot make this call
-- KEYS[18]  rules     hash, key to what is set for it
-- KEYS[19]  parked    zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[20]  holders   zset, key and ID of every running job whose key has a limit of running jobs
-- KEYS[21]  blockers  zset, place and ID of every job that its key waits for (see limits)
-- KEYS[22]  tombs     zset, closed job ID scored by when it is free again (Unix ms)
-- KEYS[23]  next      hash, running job ID to the successor that it will have
-- KEYS[24]  notes     hash, who waits for jobs, and what their runs have noted (see wait, note)
-- ARGV[1]   id        the job
-- ARGV[2]   cut       how many bytes of its record to return
-- ARGV[3]   look      how many entries of ready and of handoff to search at most
--
-- Returns {'ok', now, record, due time, lease end, burial, attempts, errors, moved, kept until,
-- result, pauses, ahead, whole, rank, leased, flow, before, keys, until, limit, stragglers, place,
-- free, successor, note, waiters}.
-- The values from record to result are those of get. pauses is the field of meta. ahead is how many
-- entries of handoff and ready are in front of the job: -1 if it is in another place, or not among
-- the entries that were searched. whole is 1 if all entries were searched. rank is how many jobs of
-- the bucket are due before it, -1 if it is not there. leased is the number of leases that are not
-- over. flow has the fields hold, holdby, holdwhy, flow, tat, gather and ahead of meta. before is
-- how many jobs of its key are in front of it in its lane, -1 if it is not in a lane. Then ahead is
-- -1 and whole is 1. keys is the number of keys in turn, with the empty one if the job is in ready.
-- until is the end of the hold of its key, if it is in a lane and the key is held. limit is empty
-- unless it is in a lane and the key is parked. Then it has when the key gets a turn, the number of
-- its entries in holders (-1: unknown), what is set for it, how many of these entries are of
-- stragglers, and if the key waits for a job that comes before this one, its ID, and when it is
-- due, or '' if it is dead. stragglers is the number of all of the topic. place is that in keyed.
-- free is when the ID is free again if it is closed and no unfinished job has it, else empty.
-- successor is that of the job: when it is due, the reason for its entry in moved, and the size of
-- its record, with spaces between them; else it is empty. note is what the job has noted, as get
-- returns it, and waiters is how many clients wait for it.
-- Cost: O(log N + look).
-- Uses: now place successor
local pool, bucket, leases, dead, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local errors, moved, done, results = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local ready, handoff, meta, lane = KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local turn, keyed, held, operator = KEYS[14], KEYS[15], KEYS[16], KEYS[17]
local rules, parked, holders, blockers = KEYS[18], KEYS[19], KEYS[20], KEYS[21]
local tombs, next, notes = KEYS[22], KEYS[23], KEYS[24]
local id, cut, look = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local record, result = redis.call('HGET', pool, id), redis.call('HGET', results, id)
local due, lease = redis.call('ZSCORE', bucket, id), redis.call('ZSCORE', leases, id)
local burial = redis.call('ZSCORE', dead, id)

-- wakers counts those of the first n entries of a list that only wake a server: see
-- prelude/rouse.lua.
local function wakers(list, n)
  local some = 0
  for _, at in ipairs(redis.call('LPOS', list, '', 'COUNT', 64, 'MAXLEN', look)) do
    some = some + (at < n and 1 or 0)
  end
  return some
end

-- position returns the index of the job among the first entries of a list, or nil. Those that only
-- wake a server do not count.
local function position(list)
  local at = redis.call('LPOS', list, id, 'MAXLEN', look)
  return type(at) == 'number' and at - wakers(list, at) or nil
end

-- Entries of stragglers from here on count, those of the topic and, with another first part, of a
-- key: see prelude/straggler.lua.
local counts = string.char(0) .. '1' .. string.format('%017.3f', now + 0.001)

-- ask makes a call about what only keys and limits use. A wrong type there hides nothing else: then
-- the answer is false.
local function ask(...)
  local answer = redis.pcall(...)
  return not (type(answer) == 'table' and answer.err) and answer
end

local place, before, ending, limit = false, -1, false, {}
if record and has_key(record) then
  place = redis.call('HGET', keyed, id)
end
if place and of_record(place, record) and redis.call('ZSCORE', lane, place .. id) then
  local key = key_of(place)
  local from, to = lane_range(key)
  before = redis.call('ZLEXCOUNT', lane, from, '(' .. place .. id)
  local score = ask('ZSCORE', held, key)
  if score and tonumber(score) > now then
    ending = score
  end
  local till = ask('ZSCORE', parked, key)
  if till and not ask('ZSCORE', turn, key) then
    local alive = string.sub(from, 2) .. string.sub(counts, 2)
    limit = {till, ask('ZLEXCOUNT', holders, from, to) or -1, ask('HGET', rules, key) or '',
      ask('ZLEXCOUNT', holders, '[' .. alive, to) or 0}
    local first = ask('ZRANGEBYLEX', blockers, from, '(' .. place .. id, 'LIMIT', 0, 1)
    local _, _, blocker = key_of(first and first[1] or '')
    if blocker then
      limit[5], limit[6] = blocker, redis.call('ZSCORE', bucket, blocker) or ''
    end
  end
end

local ahead, whole = -1, 1
if record and before < 0 and not due and not lease and not burial then
  local handed, waits = redis.call('LLEN', handoff), redis.call('LLEN', ready)
  local at = position(handoff)
  if not at then
    at = position(ready)
    at = at and at + handed - wakers(handoff, handed)
  end
  ahead = at or -1
  whole = math.max(handed, waits) <= look and 1 or 0
end

-- Ready can have its turn for nothing but an ID that wakes a server. A job there gets its turn by
-- the next take.
local keys, plain = ask('ZCARD', turn) or 0, ask('ZSCORE', turn, '')
if ahead >= 0 then
  keys = keys + (plain and 0 or 1)
elseif plain and (redis.call('LRANGE', ready, 0, 0)[1] or '') == '' then
  keys = keys - 1
end

local free = not record and ask('ZSCORE', tombs, id) or ''
if (tonumber(free) or 0) <= now then
  free = ''
end

local next_due, next_why, next_record = successor_of(ask('HGET', next, id) or '')

-- Who waits is in netstrings (see prelude/wait.lua).
local waits, at, waiters = ask('HGET', notes, 'w' .. id) or '', 1, 0
while record and at <= #waits do
  local size, from = string.match(waits, '^(%d+):()', at)
  if not size then
    break
  end
  at = from + size
  local since = tonumber(string.sub(waits, from + 8, from + 20)) or 0
  local fits = size + 0 > 21 and string.sub(waits, from, from + 7) == string.sub(record, 1, 8)
  waiters = waiters + (fits and math.abs(now - since) < 60000 and 1 or 0)
end

return {
  'ok', now,
  record and string.sub(record, 1, cut),
  due,
  lease,
  burial,
  redis.call('HGET', attempts, id),
  redis.call('HGET', errors, id),
  redis.call('HGET', moved, id),
  redis.call('ZSCORE', done, id),
  result and string.sub(result, 1, cut + 1024), -- up to 1 KiB about the run, and then the record
  redis.call('HGET', meta, 'pauses'),
  ahead,
  whole,
  due and redis.call('ZRANK', bucket, id) or -1,
  redis.call('ZCOUNT', leases, string.format('(%.0f', now), 9999999999999), -- not the anchor
  redis.call('HMGET', meta, 'hold', 'holdby', 'holdwhy', 'flow', 'tat', 'gather', 'ahead'),
  before,
  keys,
  ending,
  limit,
  ask('ZLEXCOUNT', holders, '[' .. counts, '(' .. string.char(1)) or 0,
  place,
  free,
  next_due and string.format('%.0f %s %d', next_due, next_why, #next_record) or '',
  ask('HGET', notes, 'p' .. id) or '',
  waiters,
}
