-- page: reads jobs in one state, from a place in their order on. Writes nothing.
--
-- KEYS[1]    pool      hash, job ID to record
-- KEYS[2]    bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[3]    ready     list of job IDs, next one at the head
-- KEYS[4]    leases    zset, job ID scored by the end of its lease
-- KEYS[5]    dead      zset, job ID scored by the time of burial
-- KEYS[6]    done      zset, job ID scored by the time it is kept until
-- KEYS[7]    attempts  hash, job ID to number of finished attempts
-- KEYS[8]    errors    hash, job ID to its error log
-- KEYS[9]    moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[10]   results   hash, job ID to its kept run and record
-- KEYS[11]   stats     hash, counter to number
-- KEYS[12]   sizes     hash, the size of the largest record
-- KEYS[13]   operator  none, never exists: a client without rights to it cannot make this call
-- KEYS[14]   lane      zset, places of waiting jobs that have a key, each with the job ID
-- KEYS[15]   keyed     hash, job ID to its place in a lane, for jobs that have a key
-- ARGV[1]    walk      scheduled, ready, dead or done: walk through these jobs, of the ready ones
--                      those in ready. lanes: the ready ones in lane. ids: list the IDs in leases,
--                      in no order. running: look at the jobs that words name
-- ARGV[2]    backward  1: walk from the end; not for ids and running
-- ARGV[3]    look      how many entries to look at, at most 1,000
-- ARGV[4]    want      how many jobs to return at most
-- ARGV[5]    bytes     how many bytes of records, errors and results to read at most; always at
--                      least one job
-- ARGV[6]    most      the record of a job is read if it has at most that many bytes
-- ARGV[7]    cut       how many bytes of each record to return, -1 for all
-- ARGV[8]    from      the lowest score, -inf for all; for scheduled, dead and done. For lanes, the
--                      bound of the first entry, as ZRANGEBYLEX has it
-- ARGV[9]    to        scores end below this one, +inf for all. For lanes, the bound of the last
--                      entry
-- ARGV[10]   begins    only IDs that begin so
-- ARGV[11]   finished  only jobs with at least that many finished attempts
-- ARGV[12]   failed    1: only jobs with an error log
-- ARGV[13]   needles   how many of the words are texts that a record must contain
-- ARGV[14..] words     the needles, and then the place from which the walk goes on; none: from its
--                      beginning
--
-- A place consists of texts that this script has returned. In a zset it is the score and the ID of
-- the last entry that was looked at: the walk goes on behind them, even if that entry is gone. In
-- ready it is the number of entries in front of it; how much closer to the head it is looked for,
-- 0; the number of jobs taken less those returned by then, and of those reclaimed; and the IDs of
-- its neighbours: how many are in front, at most eight on each side. It moves towards the head as
-- jobs are taken. If it is not within 512 entries of where it should be, the reply is 'lost'. A
-- place without neighbours is where it should be. In lane it is the last entry that was looked at,
-- in the reply with the word lanes in front. For ids it is a cursor of ZSCAN.
--
-- Returns {'ok', now, total, looked, ended, place, ids, scores, values, attempts, errors, moved,
-- lengths, next}. total is the number of jobs in that state, and in a zset between from and to.
-- looked is how many entries were looked at. ended is 1 if there are no more. values are the
-- records, of done jobs the results, and nil if they are larger than most; lengths are the sizes of
-- all. scores are those of the walk, of running jobs the lease ends. next is where a walk through
-- ready jobs goes on when this one has ended: lanes after ready, the other way round backward, or
-- empty. A walk through all lanes that are empty goes through ready. With ids, ids is the last
-- value. The other reply is {'lost', now}.
-- Cost: O(log² N + look), and for ready O(N / 100) more to find the place.
-- Uses: now place
local pool, bucket, ready, leases, dead, done = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local attempts, errors, moved, results = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local stats, sizes, operator, lane, keyed = KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15]
local walk, backward, look, want = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local bytes, most, cut = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local from, to, begins, finished = ARGV[8], ARGV[9], ARGV[10], tonumber(ARGV[11])
local failed, needles = ARGV[12], tonumber(ARGV[13])
local words, first = ARGV, 14

local near, window, few = 8, 512, 16
local at = first + needles -- of the place in words
local begun = not words[at]
local laned_jobs = (walk == 'ready' or walk == 'lanes') and redis.call('EXISTS', lane) == 1
if walk == 'lanes' and begun and from == '-' and not laned_jobs then
  walk = 'ready'
end

if walk == 'ids' then
  local scan = redis.call('ZSCAN', leases, words[at] or '0', 'COUNT', look)
  local next, members, ids = scan[1], scan[2], {}
  for i = 1, #members, 2 do
    if #members[i] <= 1024 then -- not the anchor
      ids[#ids + 1] = members[i]
    end
  end
  local total = redis.call('ZCOUNT', leases, '-inf', 9999999999999)
  return {'ok', now, total, #ids, next == '0' and 1 or 0, {next}, ids}
end

-- precedes compares IDs by their bytes, as Redis does. The comparison of Lua depends on the locale
-- of the server.
local function precedes(a, b)
  local low, high = 0, math.min(#a, #b)
  local shorter = high
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if string.sub(a, 1, middle) == string.sub(b, 1, middle) then
      low = middle
    else
      high = middle - 1
    end
  end
  if low == shorter then
    return #a < #b
  end
  return string.byte(a, low + 1) < string.byte(b, low + 1)
end

-- passed returns how many entries of a zset precede a score and an ID. The ID itself counts if
-- through is set.
local function passed(zset, score, id, through)
  local known = redis.call('ZSCORE', zset, id)
  if known and tonumber(known) == tonumber(score) then
    return redis.call('ZRANK', zset, id) + (through and 1 or 0)
  end
  local low = redis.call('ZCOUNT', zset, '-inf', '(' .. score)
  local high = redis.call('ZCOUNT', zset, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if precedes(redis.call('ZRANGE', zset, middle, middle)[1], id) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- A job that leaves ready at the head moves the others, and one that returns there too. These
-- counters have nearly all such moves. Some of the reclaimed jobs go to bucket.
local moves = walk == 'ready' and redis.call('HMGET', stats, 'taken', 'returned', 'reclaimed') or {}
local gone = (tonumber(moves[1] or 0) or 0) - (tonumber(moves[2] or 0) or 0)
local reclaimed = tonumber(moves[3] or 0) or 0

-- found returns how many entries of ready are in front of the place, or nil if its neighbours are
-- not near. A neighbour that is further from the head than it can be is not where it was: it was
-- pushed again at the tail. If two have moved by the same few entries, something was pushed at the
-- head that no counter has.
local function found()
  local fronts, last = tonumber(words[at + 4]), #words
  local border = at + 5 + fronts
  local behind = last - border + 1
  local expected = tonumber(words[at]) - gone + tonumber(words[at + 2])
  local pushed = math.max(0, reclaimed - tonumber(words[at + 3]))
  local middle = expected - tonumber(words[at + 1])
  if expected + behind <= 0 then
    return 0 -- all of them have been taken
  elseif fronts + behind == 0 then
    return math.min(expected, redis.call('LLEN', ready))
  elseif middle + window < 0 then
    return nil -- closer than the head
  end
  local should = {}
  for i = at + 5, last do
    if words[i] ~= '' then -- a wake-up can be anywhere, and so can an ID that occurs twice
      should[words[i]] = should[words[i]] == nil and expected + i - border
    end
  end
  -- Usually they are just there.
  if expected > 0 and behind > 0 and fronts > 0 then
    local two = redis.call('LRANGE', ready, expected - 1, expected)
    if two[1] == words[border - 1] and two[2] == words[border] then
      return expected
    end
  end
  local low, candidates, shifts, best, shifted = math.max(0, middle - window), {}, {}, nil, nil
  for i, id in ipairs(redis.call('LRANGE', ready, low, middle + window)) do
    local shift = should[id] and low + i - 1 - should[id]
    if shift and shift <= pushed then
      candidates[#candidates + 1] = {low + i - 1, should[id] >= expected, shift}
      best = math.max(best or shift, shift)
    elseif shift and shift <= pushed + few then
      shifted = shifted or shifts[shift] and expected + shift
      shifts[shift] = true
    end
  end
  -- The shifts differ by the entries that were removed between the neighbours.
  local front
  for _, one in ipairs(candidates) do
    if one[3] >= best - few and one[2] then
      return one[1]
    elseif one[3] >= best - few then
      front = one[1] + 1
    end
  end
  return front or shifted
end

-- The entries to look at, in the order of the walk, with their scores.
local entries, scores, ended = {}, {}, true
local total
-- Of ready: what was read, and how many entries precede that and the place.
local around, base, position = {}, 0, 0
local laned = {} -- the entries of lane
local function unstarted()
  return redis.call('HLEN', pool) - redis.call('ZCARD', bucket) - redis.call('ZCARD', dead)
    - redis.call('ZCOUNT', leases, '-inf', 9999999999999)
end
if walk == 'running' then
  total = redis.call('ZCOUNT', leases, '-inf', 9999999999999)
  for i = at, #words do
    entries[#entries + 1] = words[i]
  end
elseif walk == 'ready' then
  total = unstarted()
  local length = redis.call('LLEN', ready)
  if begun then
    position = backward == '1' and length or 0
  else
    position = found()
  end
  if not position then
    return {'lost', now}
  end
  local low, high = position, math.min(position + look, length)
  if backward == '1' then
    low, high = math.max(0, position - look), position
  end
  base = math.max(0, low - near)
  around = redis.call('LRANGE', ready, base, high + near - 1)
  ended = backward == '1' and low == 0 or backward ~= '1' and high >= length
  for i = low + 1, high do
    entries[#entries + 1] = around[i - base]
  end
elseif walk == 'lanes' then
  total = unstarted()
  if backward == '1' then
    to = begun and to or '(' .. words[at]
    laned = redis.call('ZREVRANGEBYLEX', lane, to, from, 'LIMIT', 0, look)
  else
    from = begun and from or '(' .. words[at]
    laned = redis.call('ZRANGEBYLEX', lane, from, to, 'LIMIT', 0, look)
  end
  ended = #laned < look
  for i, entry in ipairs(laned) do
    local _, _, id = key_of(entry)
    entries[i] = id or ''
  end
else
  local index = ({scheduled = bucket, dead = dead, done = done})[walk]
  local low = redis.call('ZCOUNT', index, '-inf', '(' .. from)
  local high = redis.call('ZCOUNT', index, '-inf', '(' .. to)
  total = math.max(0, high - low)
  if backward == '1' then
    high = begun and high or math.min(high, passed(index, words[at], words[at + 1], false))
    ended = high - look <= low
    low = math.max(low, high - look)
  else
    low = begun and low or math.max(low, passed(index, words[at], words[at + 1], true))
    ended = low + look >= high
    high = math.min(high, low + look)
  end
  local range = low < high and redis.call('ZRANGE', index, low, high - 1, 'WITHSCORES') or {}
  for i = 1, #range, 2 do
    entries[#entries + 1], scores[#scores + 1] = range[i], range[i + 1]
  end
end
if backward == '1' and walk ~= 'running' and walk ~= 'lanes' then
  for _, list in ipairs({entries, scores}) do
    for i = 1, math.floor(#list / 2) do
      list[i], list[#list + 1 - i] = list[#list + 1 - i], list[i]
    end
  end
end

-- scores_in returns the scores that the entries have in a zset.
local function scores_in(zset)
  if #entries == 0 or redis.call('ZCARD', zset) == 0 then
    return {}
  end
  return redis.call('ZMSCORE', zset, unpack(entries))
end

local waits = walk == 'ready' or walk == 'lanes'
local delayed = (waits or walk == 'done') and scores_in(bucket) or {}
local buried = walk ~= 'dead' and scores_in(dead) or {}
local leased = walk ~= 'dead' and scores_in(leases) or {}
if walk == 'running' then
  scores, leased = leased, {}
end
-- Entries of lane that are not the places of their jobs are left over, and so are the entries in
-- ready of jobs in lane.
local noted = waits and #entries > 0 and redis.call('EXISTS', keyed) == 1
  and redis.call('HMGET', keyed, unpack(entries)) or {}
local tried = finished > 0 and #entries > 0 and redis.call('HMGET', attempts, unpack(entries)) or {}
local logs = walk ~= 'done' and redis.call('HLEN', errors) > 0
local hash, about = pool, 0
if walk == 'done' then
  hash, about = results, 1024 -- a result is up to 1 KiB about the run, and then the record
end

-- counts reports whether an entry is a job in that state that can be wanted, as far as is known
-- without its record.
local function counts(i, id)
  return not (delayed[i] or buried[i] or leased[i]) and (walk ~= 'running' or scores[i])
    and (walk ~= 'lanes' or noted[i] and noted[i] .. id == laned[i])
    and not (walk == 'ready' and noted[i] and redis.call('ZSCORE', lane, noted[i] .. id))
    and (finished == 0 or (tonumber(tried[i] or 0) or 0) >= finished)
    and string.sub(id, 1, #begins) == begins
    and (walk ~= 'done' or redis.call('HEXISTS', pool, id) == 0)
end

-- matches reports whether a record contains all needles.
local function matches(record)
  for i = first, at - 1 do
    if not record or not string.find(record, words[i], 1, true) then
      return false
    end
  end
  return true
end

-- If no record can be large and most entries are wanted, one command reads all records.
local largest = walk ~= 'done' and #entries > 0 and redis.pcall('HGET', sizes, 'largest')
largest = type(largest) ~= 'table' and tonumber(largest or 2000) or bytes
local records
if walk ~= 'done' and #entries > 0 and largest <= most and largest * #entries <= bytes
  and begins == '' and finished == 0 and failed ~= '1' then
  records = redis.call('HMGET', pool, unpack(entries))
end

local ids, own, values, lengths = {}, {}, {}, {}
local read, looked = 0, 0
for i, id in ipairs(entries) do
  if #ids >= want then
    break
  end
  local value, size = records and records[i] or false, 0
  if value then
    size = counts(i, id) and #value or 0
  elseif not records then
    size = counts(i, id) and redis.call('HSTRLEN', hash, id) or 0
  end
  local log = size > 0 and logs and redis.call('HSTRLEN', errors, id) or 0
  if size > 0 and (failed ~= '1' or log > 0) then
    local cost = log + (size <= most and size or 0)
    if read > 0 and read + cost > bytes then
      break
    end
    read = read + cost
    if size > most then
      value = false
    elseif not value then
      value = redis.call('HGET', hash, id)
    end
    if matches(value) then
      local n = #ids + 1
      ids[n], own[n], lengths[n] = id, scores[i] or false, size
      values[n] = value and cut >= 0 and string.sub(value, 1, cut + about) or value
    end
  end
  looked = i
end

local place = {}
if walk == 'ready' then
  position = position + (backward == '1' and -looked or looked)
  local fronts = math.min(near, position - base)
  place = {tostring(position), '0', tostring(gone), tostring(reclaimed), tostring(fronts)}
  for i = position - base - fronts + 1, math.min(position - base + near, #around) do
    place[#place + 1] = around[i]
  end
elseif walk == 'lanes' then
  place = {'lanes', laned[looked]}
elseif looked > 0 and scores[looked] then
  place = {scores[looked], entries[looked]}
end

local function books(name)
  return #ids > 0 and walk ~= 'done' and redis.call('HMGET', name, unpack(ids)) or {}
end

local next = ''
if laned_jobs and (walk == 'lanes') == (backward == '1') then
  next = walk == 'ready' and 'lanes' or 'ready'
end

return {
  'ok', now, total, looked, ended and looked == #entries and 1 or 0, place,
  ids, own, values, books(attempts), books(errors), books(moved), lengths, next,
}
