-- ack: ends jobs for good and deletes them, unless they are kept as done.
--
-- KEYS[1]    leases    zset, job ID scored by the end of its lease
-- KEYS[2]    pool      hash, job ID to record
-- KEYS[3]    attempts  hash, job ID to number of finished attempts
-- KEYS[4]    errors    hash, job ID to its error log
-- KEYS[5]    moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[6]    done      zset, job ID scored by the time it is kept until
-- KEYS[7]    results   hash, job ID to its kept run and record
-- KEYS[8]    stats     hash, counter to number
-- KEYS[9]    receipt   string, the last call of the series and its reply
-- KEYS[10]   runs      hash, schedule to the history of its runs
-- KEYS[11]   keyed     hash, job ID to its place in a lane
-- ARGV[1]    number    number of this call in its series
-- ARGV[2]    counter   the counter of these jobs: acked or expired
-- ARGV[3..]  jobs      rows (see prelude/settle.lua) with no values, or with three: how long the
--                      job is kept in ms (0: not), a netstring about the run that precedes the
--                      record, with the output that follows it, and the run's entry for runs
--                      (empty: none)
--
-- At most 1,000 jobs a call. Send no more than about 1 MiB of records to keep, beyond the first
-- one, because they are copied.
-- Returns {'ok', now, letters}: o for done, l for lost, g for gone; no letters if all are done.
-- Cost: O(jobs × log N).

-- Gives: time now

-- now is Redis's clock in Unix ms. All due times and lease ends are compared with it and with no
-- other clock.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Gives: receipt_ms replay remember

-- A caller numbers the calls of a series, upwards. If the reply to a call is lost and the call is
-- sent again, replay finds the number and the script returns its first reply. A call with a lower
-- number was abandoned by its caller and comes late, from a connection that was considered dead, or
-- two callers use one series. It must do nothing, and its reply is the error PASSED.
-- After the number, a slash and ms can say how long the receipt is kept. Default: 3 minutes. After
-- another slash, a tag can say what the call is about. The same number with another tag is another
-- call, which comes too late too.
--
-- With a time, replay also writes the receipt anew: it is kept from now on, and a WAIT that follows
-- covers this write, so the first call too. If Redis refuses that, nobody may take the reply for
-- confirmed, and the error is UNCONFIRMED. DEL comes first, because Redis does not refuse it for
-- lack of memory, and after it no write.
local receipt_ms = 180000

local function replay(receipt, number)
  local own, kept, tag = string.match(number, '^(%d+)/?(%d*)/?(%w*)$')
  local text = redis.call('GET', receipt) or ''
  local last, about, reply = string.match(text, '^(%d+)/?(%w*):(.*)$')
  if last == own and about == tag then
    if kept ~= '' then
      local dropped = redis.pcall('DEL', receipt)
      if type(dropped) == 'table' then
        error('UNCONFIRMED ' .. dropped.err, 0)
      end
      redis.call('SET', receipt, text, 'PX', kept)
    end
    return reply
  end
  if last and (last == own or tonumber(last) > tonumber(own)) then
    error('PASSED the series of this call has come to ' .. last, 0)
  end
  return nil
end

-- A receipt is written with pcall and last: it never decides the fate of a job.
local function remember(receipt, number, reply)
  local own, kept, tag = string.match(number, '^(%d+)/?(%d*)(/?%w*)$')
  kept = kept ~= '' and kept or receipt_ms
  redis.pcall('SET', receipt, own .. tag .. ':' .. reply, 'PX', kept)
end

-- Gives: count

-- count adds to a counter. It returns the new value, if that is known. With pcall: a counter never
-- decides the fate of a job.
local function count(stats, field, n)
  if n > 0 then
    return redis.pcall('HINCRBY', stats, field, n)
  end
end

-- Gives: anchor release

-- anchor is a member of leases as long as leases has others. Redis keeps a small zset in a compact
-- form, and every access scans the whole of it. A long member makes Redis choose the other form,
-- which is four times as fast with 64 leases. The anchor is longer than an ID can be, and its score
-- is +inf.
local function anchor()
  return string.rep('-', 1025)
end

-- release ends leases, and removes the anchor after the last one.
local function release(leases, ids)
  redis.call('ZREM', leases, unpack(ids))
  if redis.call('ZCARD', leases) == 1 and redis.call('ZSCORE', leases, anchor()) then
    redis.call('DEL', leases)
  end
end

-- Gives: owns together rows

-- owns reports whether a lease that ends at score (a string, or false if there is none) is the one
-- that fence names. A fence is one lease end, or several separated by spaces while extensions are
-- unconfirmed. Ends are compared as numbers, because releases of Redis write different numbers of
-- digits.
local function owns(score, fence)
  if not score or score == fence then
    return score ~= false
  end
  for lease_end in string.gmatch(fence, '%S+') do
    if tonumber(lease_end) == tonumber(score) then
      return true
    end
  end
  return false
end

-- together returns the set of IDs whose leases end at fence, for a group of that many jobs. It
-- returns nil if single look-ups are cheaper: for few jobs, several fences, or many other leases
-- with that end. A range without scores saves Redis 7.0 a fifth of an ack.
local function together(leases, fence, jobs)
  if jobs < 8 or not string.find(fence, '^%d+%.?%d*$')
    or redis.call('ZCOUNT', leases, fence, fence) > 2 * jobs then
    return nil
  end
  local set = {}
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', leases, fence, fence, 'LIMIT', 0, 2 * jobs)) do
    set[id] = true
  end
  return set
end

-- rows parses the rows of a script that settles jobs: groups of fence, number of values of a job,
-- number of jobs, and then the ID and values of each job. It returns three values. The first lists
-- the IDs whose lease still is the one that the fence names. where lists at which index in given
-- the values of each of them begin (nil without values). The letters are one for every job: o for
-- ours, l for lost, g for lost because the job is gone; none if all are ours.
local function rows(leases, pool, given, first)
  local ids, where, n = {}, {}, 0
  local single, fences, place = {}, {}, {}
  local lost, losses = {}, 0
  local at = first
  while at <= #given do
    local fence, width, jobs = given[at], tonumber(given[at + 1]), tonumber(given[at + 2])
    local set = together(leases, fence, jobs)
    at = at + 3
    for _ = 1, jobs do
      local id = given[at]
      n = n + 1
      ids[n] = id
      if width > 0 then
        where[n] = at + 1
      end
      if not set then
        local m = #single + 1
        single[m], fences[m], place[m] = id, fence, n
      elseif not set[id] then
        lost[n], losses = true, losses + 1
      end
      at = at + 1 + width
    end
  end
  if #single > 0 then
    local scores = redis.call('ZMSCORE', leases, unpack(single))
    for i, to in ipairs(place) do
      if not owns(scores[i], fences[i]) then
        lost[to], losses = true, losses + 1
      end
    end
  end
  if losses == 0 then
    return ids, where, ''
  end
  local letters, kept = {}, 0
  for i = 1, n do
    if lost[i] then
      letters[i] = redis.call('HEXISTS', pool, ids[i]) == 1 and 'l' or 'g'
    else
      letters[i], kept = 'o', kept + 1
      ids[kept], where[kept] = ids[i], where[i]
    end
  end
  for i = n, kept + 1, -1 do
    ids[i], where[i] = nil, nil
  end
  return ids, where, table.concat(letters)
end

-- Gives: retain
-- Expects: now

-- retain adds a completed job to done, with its record between the netstring about the run and the
-- output that follows that in about. With pcall: a failure does not keep the job from ending.
local function retain(pool, results, done, id, ms, about)
  local record = redis.call('HGET', pool, id)
  if record then
    local size = string.match(about, '^%d+:{"output":(%d+)')
    if size then
      local border = #about - tonumber(size)
      record = record .. string.sub(about, border + 1)
      about = string.sub(about, 1, border)
    end
    redis.pcall('HSET', results, id, about .. record)
    redis.pcall('ZADD', done, now + ms, id)
  end
end

-- Gives: runs_most schedule_of ran forget records_most records_read flagged scheduled
-- Expects: now

-- The fields of a schedule in runs. The field with its name holds "<runs> <failures>". Each of the
-- newest hundred runs has a field with "<time> <JSON>". Its name is the schedule's name, a line
-- feed (which no name contains) and the number of the run modulo 100.
local runs_most = 100

-- schedule_of parses the ID of a schedule's job: name, @ and slot, or name, ! and the time, which
-- can be followed by a dot and a number. It returns the name.
local function schedule_of(id)
  return string.match(id, '^(.+)[@!]%d+%.?%d*$')
end

-- ran notes that a run of a schedule's job has finished. With pcall, and after everything else: the
-- history never decides the fate of a job.
local function ran(runs, id, failures, note)
  local name = schedule_of(id)
  local log = name and redis.pcall('HGET', runs, name)
  local ended, bad = string.match(type(log) == 'string' and log or '', '^(%d+) (%d+)$')
  if ended then -- otherwise the schedule is gone
    redis.pcall('HSET', runs, name, string.format('%d %d', ended + 1, bad + failures),
      name .. '\n' .. ended % runs_most, string.format('%.0f ', now) .. note)
  end
end

-- forget deletes the history of a schedule.
local function forget(runs, name)
  local fields = {name}
  for i = 0, runs_most - 1 do
    fields[i + 2] = name .. '\n' .. i
  end
  redis.call('HDEL', runs, unpack(fields))
end

-- flagged reports whether a schedule made a job, by the job's record. Records can be large, so the
-- records that one call reads for this are limited: beyond the first one and 1 MiB, the ID decides.
local records_most, records_read = 1048576, 0
local function flagged(pool, id)
  local size = redis.call('HSTRLEN', pool, id)
  if records_read > 0 and records_read + size > records_most then
    return size > 0
  end
  records_read = records_read + size
  local record = redis.call('HGET', pool, id)
  return record and (string.byte(record, 10) or 0) % 4 >= 2
end

-- scheduled reports whether a schedule with a history made a job, by the job's ID and record.
local function scheduled(pool, runs, id)
  local name = schedule_of(id)
  return name and redis.pcall('HEXISTS', runs, name) == 1 and flagged(pool, id)
end
local leases, pool, attempts, errors, moved = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local done, results, stats, receipt, runs = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local keyed = KEYS[11]
local number, counter, jobs, first = ARGV[1], ARGV[2], ARGV, 3

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local ids, where, letters = rows(leases, pool, jobs, first)
if #ids > 0 then
  redis.call('HDEL', moved, '') -- after a deletion, the script can write at maxmemory
  for i, id in ipairs(ids) do
    if where[i] and jobs[where[i]] ~= '0' then
      retain(pool, results, done, id, jobs[where[i]], jobs[where[i] + 1])
    end
  end
  release(leases, ids)
  redis.call('HDEL', pool, unpack(ids))
  if redis.call('EXISTS', attempts, errors, moved, keyed) > 0 then

-- close_books: deletes the books of jobs.
-- Gives: close_books

-- close_books deletes the finished attempts (tries), the error logs and the present due times of
-- jobs that have ended. With pcall, and after everything else: leftovers never decide the fate of a
-- job.
local function close_books(tries, logs, dues, ended)
  redis.pcall('HDEL', tries, unpack(ended))
  redis.pcall('HDEL', logs, unpack(ended))
  redis.pcall('HDEL', dues, unpack(ended))
end
    redis.pcall('HDEL', keyed, unpack(ids))
    close_books(attempts, errors, moved, ids)
  end
  for i, id in ipairs(ids) do
    if where[i] and jobs[where[i] + 2] ~= '' then
      ran(runs, id, counter == 'expired' and 1 or 0, jobs[where[i] + 2])
    end
  end
end
count(stats, counter, #ids)
remember(receipt, number, letters)
return {'ok', now, letters}
