-- cancel: removes jobs in any state. If one is running, its server loses the lease and receives a
-- message.
--
-- KEYS[1]   pool      hash, job ID to record
-- KEYS[2]   bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[3]   leases    zset, job ID scored by the end of its lease
-- KEYS[4]   dead      zset, job ID scored by the time of burial
-- KEYS[5]   attempts  hash, job ID to number of finished attempts
-- KEYS[6]   errors    hash, job ID to its error log
-- KEYS[7]   moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[8]   stats     hash, counter to number
-- KEYS[9]   receipt   string, the last call of the series and its reply
-- KEYS[10]  runs      hash, schedule to the history of its runs
-- KEYS[11]  ready     list of job IDs, next one at the head
-- KEYS[12]  lane      zset, place and ID of every ready job that has a key
-- KEYS[13]  keyed     hash, job ID to its place in a lane
-- KEYS[14]  blockers  zset, place and ID of every job that its key waits for (see limits)
-- KEYS[15]  parked    zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[16]  turn      zset, key of waiting jobs scored by its pass
-- KEYS[17]  idle      zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[18]  holders   zset, key and ID of every running job whose key has a limit of running jobs
-- KEYS[19]  sizes     hash, the size of the largest record
-- ARGV[1]   number    number of this call in its series
-- ARGV[2]   channel   the control channel
-- ARGV[3]   topic     the topic's name, for the control channel
-- ARGV[4..]  jobs     for each job: ID, and how the caller knows it (see prelude/expect.lua). Each
--                     ID once, at most 500
--
-- Returns {'ok', now, letters}. letters has one letter for each of the first jobs, at least one:
-- the state it was in (s for scheduled, r for ready, u for running, d for dead). c if it is not as
-- the caller knows it, g if there is no such job: left alone. Nothing was done for the other jobs,
-- because the call has removed 100 entries of ready.
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

-- Gives: nudge

-- nudge sends the servers of a prefix a message about one job, or with an empty ID about a topic.
-- With pcall: a message never decides the fate of a job, even if the right to publish is missing.
local function nudge(channel, verb, topic, fence, id)
  redis.pcall('PUBLISH', channel, verb .. ' ' .. fence .. ' ' .. #topic .. ' ' .. topic .. id)
end

-- Gives: ring
-- Expects: nudge

-- ring wakes servers that wait for jobs, one for each job put into ready, at most 100: the longest
-- waiting first. A name leaves idle before the topic is published on its channel. If nobody listens
-- there any more, the next one is rung; after 1,000 such names that ends. If the right to publish
-- there is missing, the message goes to the control channel. With pcall: a ring never decides the
-- fate of a job.
local function ring(idle, channel, topic, jobs)
  if redis.pcall('ZCARD', idle) == 0 then
    return
  end
  local left, silent = math.min(jobs, 100), 0
  local names = redis.pcall('ZRANGE', idle, 0, left - 1)
  while names[1] and redis.pcall('ZREM', idle, unpack(names)) == #names do
    for _, name in ipairs(names) do
      local heard = redis.pcall('PUBLISH', channel .. ':' .. name, topic)
      if heard == 0 then
        silent = silent + 1
      else
        left = left - 1
      end
      if type(heard) == 'table' then
        nudge(channel, 'ring', topic, 0, name)
      end
    end
    names = left > 0 and silent < 1000 and redis.pcall('ZRANGE', idle, 0, left - 1) or {}
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

-- Gives: unready_most unready

-- unready removes the entry of a ready job if it is among the first or last thousand of the list.
-- Any other entry stays for take or prune to drop, so the cost does not depend on the length of the
-- list. With pcall: the entry never decides the fate of a job.
-- A call about many jobs removes at most unready_most entries, and leaves the rest of the jobs to
-- another call.
local unready_most = 100
local function unready(ready, id)
  for _, side in ipairs({1, -1}) do
    local at = redis.pcall('LPOS', ready, id, 'RANK', side, 'MAXLEN', 1000)
    if type(at) == 'number' then
      redis.pcall('LREM', ready, side, id)
      return
    end
  end
end

-- Gives: expected

-- expected reports whether a job is as its caller knows it: in the state of a letter, and with a
-- score. wanted is such a letter, which the score can follow: when a scheduled job is due, when a
-- dead one was buried, until when a done one is kept. An empty wanted fits every job.
local function expected(wanted, letter, score)
  if wanted == '' then
    return true
  end
  local known = string.sub(wanted, 2)
  return string.sub(wanted, 1, 1) == letter and (known == '' or tonumber(known) == tonumber(score))
end

-- Gives: place_rest key_of lane_of lane_range of_record has_key placed_at place_of pass_steps
-- Gives: offer

-- A key is what users call so: jobs can have one, which they share with other jobs (Key in the
-- library). Its lane is the line of its ready jobs, in Redis, in the order in which they are taken.
-- Comments say key for what has limits, a hold or a turn, and lane for that line only.
--
-- A place in a lane has the length of the key in one byte, the key, 11 hexadecimal digits of the
-- due time less the head start (Unix ms), 10 of a number, 8 of the head start plus 2^31, and the
-- nonce of the record. In lane the job ID follows.
local place_rest = 37 -- bytes of a place after its key

-- key_of cuts a place, or an entry of lane, into the key, the place and the ID. It returns nil if
-- that is impossible.
local function key_of(entry)
  local last = 1 + (string.byte(entry) or 256) + place_rest
  if #entry >= last then
    return string.sub(entry, 2, last - place_rest), string.sub(entry, 1, last),
      string.sub(entry, last + 1)
  end
end

-- lane_of returns the text with which all entries of a key in lane begin.
local function lane_of(key)
  return string.char(#key) .. key
end

-- lane_range returns the bounds of all entries of a key, in lane and in holders, as ZRANGEBYLEX has
-- them.
local function lane_range(key)
  local first = lane_of(key)
  return '[' .. first, '(' .. first .. 'g'
end

-- of_record reports whether a place is that of a record.
local function of_record(place, record)
  return string.sub(place, -8) == string.sub(record, 1, 8)
end

-- has_key reports whether a record has a key. Those of an even format version have one: all
-- versions have it in the same place, also those that later releases write.
local function has_key(record)
  local mark, size = string.byte(record, 26, 27) -- a malformed record has no key
  return size ~= nil and string.byte(record, 9) % 2 == 0 and mark == 196
    and string.byte(record, 28 + size) == 210 and #record >= 32 + size
end

-- placed_at returns a place, of the text before the due time, the head start in ms plus 2^31, and
-- the nonce.
local function placed_at(first, due, number, start, nonce)
  local front = math.max(0, math.min(due - start + 2147483648, 17592186044415))
  return first .. string.format('%011x%010x%08x', front, number, start) .. nonce
end

-- place_of returns the place of a record with a key, for a due time.
local function place_of(record, due, number)
  local size = string.byte(record, 27)
  local a, b, c, d = string.byte(record, 29 + size, 32 + size)
  local start = ((a * 256 + b) * 256 + c) * 256 + d
  start = start < 2147483648 and start + 2147483648 or start - 2147483648
  return placed_at(string.sub(record, 27, 27 + size), due, number, start, string.sub(record, 1, 8))
end

-- Passes are whole numbers of steps. A pass of half a step more is that of a key that has just
-- joined. Take has to give it its first pass: the scripts that offer turns do not know the weights.
local pass_steps = 262144 -- of one turn of a key without a weight

-- offer gives keys turns. A key that has none joins those that are to be served next. A pass that a
-- key has is kept. back: the turns of these keys had come when something stopped them. They are the
-- next ones.
local function offer(turn, keys, back)
  local head = redis.call('ZRANGE', turn, 0, 0, 'WITHSCORES')
  local lowest = math.floor((tonumber(head[2] or nil) or 0) * pass_steps) / pass_steps
  local pass = 0
  if head[2] and back then
    pass = lowest - 1 / pass_steps
  elseif head[2] then -- half a step gets lost beside a pass that is too high
    pass = lowest < 17179869184 and lowest + 0.5 / pass_steps or lowest + 1
  end
  local turns = {back and 'LT' or 'NX'}
  for i, key in ipairs(keys) do
    turns[2 * i], turns[2 * i + 1] = string.format('%.17g', pass), key
  end
  redis.call('ZADD', turn, unpack(turns))
end

-- Gives: rouse

-- rouse wakes servers that block, one for each job that is ready in a lane, because they wait for
-- IDs in ready. An empty ID has no record, so take drops it. At most 64 are there.
local function rouse(ready, jobs)
  local missing = math.min(jobs, 64) - redis.call('LLEN', ready)
  if missing > 0 then
    local empty = {}
    for i = 1, missing do
      empty[i] = ''
    end
    redis.call('RPUSH', ready, unpack(empty))
  end
end

-- Gives: free_keys
-- Expects: lane_range offer

-- free_keys takes keys off held or parked. Those that have jobs in lane (lanes) get turns in turn
-- (round) first, so none is lost if one of them is of a wrong type. Take parks a key when its turn
-- has come, so a key that was parked (back) is the next one. It returns the number of these jobs.
local function free_keys(zset, round, lanes, keys, back)
  redis.call('ZREM', lanes, '') -- after a deletion, the script can write at maxmemory
  local jobs, again = 0, {}
  for _, key in ipairs(keys) do
    local n = redis.call('ZLEXCOUNT', lanes, lane_range(key))
    if n > 0 then
      jobs, again[#again + 1] = jobs + n, key
    end
  end
  if jobs > 0 then
    offer(round, again, back)
  end
  redis.call('ZREM', zset, unpack(keys))
  return jobs
end

-- Gives: blocking unblock
-- Expects: key_of free_keys rouse

-- blocking lists those jobs with places that are blockers, and their keys.
local function blocking(blockers, ids, places)
  local entries, owners, some, keys = {}, {}, {}, {}
  for i, id in ipairs(ids) do
    if places[i] then
      entries[#entries + 1], owners[#owners + 1] = places[i] .. id, i
    end
  end
  if #entries > 0 and redis.call('EXISTS', blockers) == 1 then
    for n, score in ipairs(redis.call('ZMSCORE', blockers, unpack(entries))) do
      if score then
        some[#some + 1], keys[#keys + 1] = entries[n], key_of(entries[n])
      end
    end
  end
  return some, keys
end

-- unblock removes jobs from blockers. Their keys get turns if they are parked. It returns how many
-- keys with waiting jobs have got one.
local function unblock(blockers, parked, turn, lane, ready, ids, places)
  local some, keys = blocking(blockers, ids, places)
  if #some == 0 then
    return 0
  end
  redis.call('ZREM', blockers, unpack(some))
  local stopped, seen = {}, {}
  for i, score in ipairs(redis.call('ZMSCORE', parked, unpack(keys))) do
    if score and not seen[keys[i]] then
      seen[keys[i]], stopped[#stopped + 1] = true, keys[i]
    end
  end
  if #stopped == 0 then
    return 0
  end
  local n = math.min(#stopped, free_keys(parked, turn, lane, stopped, true))
  rouse(ready, n)
  return n
end

-- end_run: notes runs that Redis itself ends.
-- Gives: end_run
-- Expects: now ran

-- end_run notes in the history of its schedule that a run of a job has ended with an outcome. why
-- is nil, or a short text. With pcall, as ran.
local function end_run(runs, id, attempt, outcome, why)
  local note = {job = id, attempt = attempt, ['end'] = now, outcome = outcome, error = why}
  ran(runs, id, outcome == 'cancelled' and 0 or 1, cjson.encode(note))
end

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

-- Gives: holder_of held_by till_of unhold
-- Expects: lane_of key_of

-- holder_of returns the entry in holders of a running job whose key has a limit. The entries of a
-- key are those of its lane_range.
local function holder_of(key, id)
  return lane_of(key) .. '0' .. id
end

-- held_by returns the ID of an entry in holders of a key.
local function held_by(key, entry)
  return string.sub(entry, #key + 3)
end

-- till_of returns until when an entry in holders of a key counts that is a straggler's, and nil for
-- any other. Those of the empty key are all stragglers of the topic.
local function till_of(key, entry)
  return string.sub(entry, #key + 2, #key + 2) == '1'
    and tonumber(string.sub(entry, #key + 3, #key + 19)) or nil
end

-- unhold frees the places that jobs have in the limits of their keys.
local function unhold(holders, keyed, ids)
  if redis.call('EXISTS', holders) == 0 then
    return
  end
  local places, ended = redis.call('HMGET', keyed, unpack(ids)), {}
  for i, id in ipairs(ids) do
    local key = places[i] and key_of(places[i])
    if key then
      ended[#ended + 1] = holder_of(key, id)
    end
  end
  if #ended > 0 then
    redis.call('ZREM', holders, unpack(ended))
  end
end
-- straggler: handlers that may still run although their jobs have been cancelled or replaced.
-- Gives: stragglers_of straggle
-- Expects: now lane_of key_of holder_of

-- stragglers_of returns the entries in holders of the handler of a job whose lease ends at a time:
-- the one that counts for the limits of the topic, and the one that counts for those of the key.
-- They count until that time.
local function stragglers_of(key, ending, id)
  local till = '1' .. string.format('%017.3f', tonumber(ending))
  return lane_of('') .. till .. lane_of(key) .. id, lane_of(key) .. till .. id
end

-- straggle makes the handlers of running jobs whose leases are about to be released stragglers, if
-- the topic has limits. With pcall: they never decide the fate of a job.
local function straggle(holders, sizes, ids, ends, places)
  if redis.pcall('HEXISTS', sizes, 'limits') ~= 1 then
    return
  end
  local entries, over = {}, {}
  for i, id in ipairs(ids) do
    if tonumber(ends[i]) > now then
      local key = places[i] and key_of(places[i]) or ''
      local of_topic, of_key = stragglers_of(key, ends[i], id)
      entries[#entries + 1], entries[#entries + 2] = 0, of_topic
      if key ~= '' then
        entries[#entries + 1], entries[#entries + 2] = 0, of_key
        over[#over + 1] = holder_of(key, id)
      end
    end
  end
  if #entries > 0 then
    redis.pcall('ZADD', holders, unpack(entries))
  end
  if #over > 0 then
    redis.pcall('ZREM', holders, unpack(over))
  end
end

-- Gives: withdraw
-- Expects: unready_most expected release nudge unready unblock close_books end_run straggle

-- withdraw removes jobs in any state, and notifies the servers that run them. An ID deep in ready
-- stays there: take drops an ID without a record. wants has how the caller knows each job (see
-- expected; nil fits every job). noted has true at the index of a job of a schedule whose history
-- must record it. withdraw returns a letter for each of the first jobs: the state it was in (s
-- scheduled, r ready, u running, d dead), c if it is not as the caller knows it, or g if there is
-- no such job. It ends before a job for which it would search ready too often. Where the topic has
-- limits, the handlers of running jobs keep their places.
local function withdraw(ids, wants, noted, pool, bucket, ready, lane, keyed, leases, dead, attempts,
    errors, moved, runs, blockers, parked, turn, holders, sizes, channel, topic)
  local fences = redis.call('ZMSCORE', leases, unpack(ids))
  local delayed = redis.call('ZMSCORE', bucket, unpack(ids))
  local buried = redis.call('ZMSCORE', dead, unpack(ids))
  local lanes = redis.call('EXISTS', keyed) == 1
  local places = lanes and redis.call('HMGET', keyed, unpack(ids)) or {}
  if lanes then -- a wrong type must cause an error before the jobs are deleted
    redis.call('ZCARD', blockers)
    redis.call('ZCARD', parked)
    redis.call('ZCARD', turn)
    redis.call('ZCARD', lane)
  end
  local letters, gone, entries, laned, left, freed = {}, {}, {}, {}, {}, 0
  local waiting, finished, running, ends, spots = {}, {}, {}, {}, {}
  for i, id in ipairs(ids) do
    if #entries == unready_most then
      break
    end
    local letter = fences[i] and 'u' or buried[i] and 'd' or delayed[i] and 's' or 'r'
    letters[i] = 'g'
    if not expected(wants[i] or '', letter, buried[i] or delayed[i]) then
      letters[i] = redis.call('HEXISTS', pool, id) == 1 and 'c' or 'g'
    elseif redis.call('HDEL', pool, id) == 1 then
      letters[i] = letter
      gone[#gone + 1] = id
      left[#gone] = places[i]
      if delayed[i] then
        waiting[#waiting + 1] = id
      end
      if buried[i] then
        finished[#finished + 1] = id
      end
      if fences[i] then
        running[#running + 1] = id
        ends[#running], spots[#running] = fences[i], places[i] or false
      end
      if letters[i] == 'r' and places[i] then
        laned[#laned + 1] = places[i] .. id
      elseif letters[i] == 'r' then
        entries[#entries + 1] = id
      end
    end
  end
  if #waiting > 0 then
    redis.call('ZREM', bucket, unpack(waiting))
  end
  if #finished > 0 then
    redis.call('ZREM', dead, unpack(finished))
  end
  if #running > 0 then
    straggle(holders, sizes, running, ends, spots)
    release(leases, running)
  end
  local tried = {}
  for i, id in ipairs(ids) do
    if letters[i] == 'u' then
      nudge(channel, 'cancel', topic, fences[i], id)
    end
    if noted[i] and letters[i] and letters[i] ~= 'g' and letters[i] ~= 'c' then
      tried[i] = redis.pcall('HGET', attempts, id)
    end
  end
  for _, id in ipairs(entries) do
    unready(ready, id)
  end
  if #laned > 0 then
    redis.pcall('ZREM', lane, unpack(laned))
  end
  if lanes and #gone > 0 then
    freed = unblock(blockers, parked, turn, lane, ready, gone, left)
    redis.pcall('HDEL', keyed, unpack(gone))
  end
  if #gone > 0 then
    close_books(attempts, errors, moved, gone)
  end
  for i, id in ipairs(ids) do
    if tried[i] ~= nil then
      end_run(runs, id, (type(tried[i]) == 'string' and tried[i] or 0) + 1, 'cancelled')
    end
  end
  return table.concat(letters), freed
end

-- Gives: tell_slots
-- Expects: nudge

-- tell_slots tells the servers which jobs of schedules no longer keep slots waiting, although no
-- server has ended them: one job of each schedule. No slot waits for a job that was triggered.
local function tell_slots(channel, topic, ids)
  local told = {}
  for _, id in ipairs(ids) do
    local name = string.match(id, '^(.+)@%d+$')
    if name and not told[name] then
      told[name] = true
      nudge(channel, 'wake', topic, 0, id)
    end
  end
end
local pool, bucket, leases, dead, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local errors, moved, stats = KEYS[6], KEYS[7], KEYS[8]
local receipt, runs, ready, lane, keyed = KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local blockers, parked, turn, idle = KEYS[14], KEYS[15], KEYS[16], KEYS[17]
local holders, sizes = KEYS[18], KEYS[19]
local number, channel, topic = ARGV[1], ARGV[2], ARGV[3]
local jobs, first, width = ARGV, 4, 2

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local ids, wants, noted = {}, {}, {}
for at = first, #jobs, width do
  local n = #ids + 1
  ids[n], wants[n] = jobs[at], jobs[at + 1]
  noted[n] = scheduled(pool, runs, jobs[at])
end
local letters, freed = withdraw(ids, wants, noted, pool, bucket, ready, lane, keyed, leases, dead,
  attempts, errors, moved, runs, blockers, parked, turn, holders, sizes, channel, topic)
if freed > 0 then
  ring(idle, channel, topic, freed)
end
local over = {}
for i, id in ipairs(ids) do
  if noted[i] and string.find(string.sub(letters, i, i), '[sru]') then
    over[#over + 1] = id
  end
end
tell_slots(channel, topic, over)
local _, others = string.gsub(letters, '[cg]', '')
count(stats, 'cancelled', #letters - others)
remember(receipt, number, letters)
return {'ok', now, letters}
