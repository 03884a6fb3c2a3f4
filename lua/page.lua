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
-- KEYS[16]   notes     hash, who waits for jobs, and what their runs have noted (see wait, note)
-- ARGV[1]    walk      scheduled, ready, dead or done: walk through these jobs, of the ready ones
--                      those in ready. lanes: the ready ones in lane. ids: list the IDs in leases,
--                      in no order. running: look at the jobs that words name
-- ARGV[2]    backward  1: walk from the end; not for ids and running
-- ARGV[3]    look      how many entries to look at, at most 1,000
-- ARGV[4]    want      how many jobs to return at most
-- ARGV[5]    bytes     how many bytes of records, errors, results and notes to read at most; always
--                      at least one job
-- ARGV[6]    most      the record of a job is read if it has at most that many bytes. -1: neither
--                      records nor attempts, errors and places are read, and an entry without a
--                      record counts as a job
-- ARGV[7]    cut       how many bytes of each record to return, -1 for all
-- ARGV[8]    from      the lowest score, -inf for all; for scheduled, dead and done. For lanes, the
--                      bound of the first entry, as ZRANGEBYLEX has it
-- ARGV[9]    to        scores end below this one, +inf for all. For lanes, the bound of the last
--                      entry
-- ARGV[10]   begins    only IDs that begin so
-- ARGV[11]   finished  only jobs with at least that many finished attempts
-- ARGV[12]   failed    1: only jobs with an error log
-- ARGV[13]   needles   how many of the words are texts that a record must contain
-- ARGV[14..] words     the needles, and then the place from which the walk goes on, or skip and how
--                      many entries to skip; none: from its beginning
--
-- A place consists of texts that this script has returned. In a zset it is the score and the ID of
-- the last entry that was looked at: the walk goes on behind them, even if that entry is gone. In
-- ready it is what prelude/page_ready.lua says. If it cannot be found again there, the reply is
-- 'lost'. In lane it is the last entry that was looked at, in the reply with the word lanes in
-- front. For ids it is a cursor of ZSCAN. Entries are skipped by their rank. If ready or lane has
-- fewer, the rest is skipped in the other one: ready comes first, or lane backward.
--
-- Returns {'ok', now, total, looked, ended, place, ids, scores, values, attempts, errors, moved,
-- lengths, next, places, notes}. total is the number of jobs in that state, and in a zset between
-- from and to. looked is how many entries were looked at. ended is 1 if there are no more. values
-- are the records, of done jobs the results, and nil if they are larger than most; lengths are the
-- sizes of all. scores are those of the walk, of running jobs the lease ends. next is where a walk
-- through ready jobs goes on when this one has ended: lanes after ready, the other way round
-- backward, or empty. A walk through all lanes that are empty goes through ready. places are those
-- in keyed. notes are as get returns them. With ids, ids is the last value. The other reply is
-- {'lost', now}.
-- Cost: O(log² N + look), and for ready O(N / 100) more to find the place or to skip.
-- Uses: now place
local pool, bucket, ready, leases, dead, done = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local attempts, errors, moved, results = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local stats, sizes, operator, lane, keyed = KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15]
local notes = KEYS[16]
local walk, backward, look, want = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local bytes, most, cut = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local from, to, begins, finished = ARGV[8], ARGV[9], ARGV[10], tonumber(ARGV[11])
local failed, needles = ARGV[12], tonumber(ARGV[13])
local words, first = ARGV, 14

local at = first + needles -- of the place in words
local begun, skip = not words[at], nil
if words[at] == 'skip' then
  begun, skip = true, tonumber(words[at + 1])
end
local laned_jobs = (walk == 'ready' or walk == 'lanes') and redis.call('EXISTS', lane) == 1
if walk == 'lanes' and begun and from == '-' and not laned_jobs then
  walk = 'ready'
end
if skip and laned_jobs and walk == 'ready' and backward ~= '1' then
  local before = redis.call('LLEN', ready)
  if skip >= before then
    walk, skip = 'lanes', skip - before
  end
elseif skip and walk == 'lanes' and backward == '1' then
  local before = redis.call('ZCARD', lane)
  if skip >= before then
    walk, skip = 'ready', skip - before
  end
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

-- Uses: page_zset page_ready
-- The entries to look at, in the order of the walk, with their scores.
local entries, scores, ended = {}, {}, true
local total
-- Of ready: what was read, and how many entries precede that and the place.
local around, base, position = {}, 0, 0
local laned = {} -- the entries of lane

-- unstarted returns the number of ready jobs.
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
    position = math.min(skip or 0, length)
    position = backward == '1' and length - position or position
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
  if skip and backward == '1' then
    laned = redis.call('ZRANGE', lane, skip, skip + look - 1, 'REV')
  elseif skip then
    laned = redis.call('ZRANGE', lane, skip, skip + look - 1)
  elseif backward == '1' then
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
    high = begun and math.max(low, high - (skip or 0))
      or math.min(high, passed(index, words[at], words[at + 1], false))
    ended = high - look <= low
    low = math.max(low, high - look)
  else
    low = begun and low + (skip or 0)
      or math.max(low, passed(index, words[at], words[at + 1], true))
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

-- Uses: page_jobs
read_jobs()

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

-- books returns what a hash has of the jobs.
local function books(name)
  if #ids == 0 or walk == 'done' or most < 0 and name ~= moved or redis.call('HLEN', name) == 0 then
    return {}
  end
  return redis.call('HMGET', name, unpack(ids))
end

local places = #ids > 0 and most >= 0 and redis.pcall('HMGET', keyed, unpack(ids)) or {}
places = places.err and {} or places -- one of a wrong type has none
local fields = {}
for i = 1, noted_any and #ids or 0 do
  fields[i] = 'p' .. ids[i]
end
local said = #fields > 0 and redis.call('HMGET', notes, unpack(fields)) or {}

local next = ''
if laned_jobs and (walk == 'lanes') == (backward == '1') then
  next = walk == 'ready' and 'lanes' or 'ready'
end

return {
  'ok', now, total, looked, ended and looked == #entries and 1 or 0, place,
  ids, own, values, books(attempts), books(errors), books(moved), lengths, next, places, said,
}
