-- take: leases jobs from the head of ready to one server.
--
-- KEYS[1]   ready     list of job IDs, next one at the head
-- KEYS[2]   handoff   list of job IDs on the way from a server's wait to its take
-- KEYS[3]   pool      hash, job ID to record
-- KEYS[4]   bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[5]   leases    zset, job ID scored by the end of its lease
-- KEYS[6]   dead      zset, job ID scored by the time of burial
-- KEYS[7]   attempts  hash, job ID to number of finished attempts
-- KEYS[8]   moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[9]   meta      hash, settings of the topic made by operators
-- KEYS[10]  receipt   list of this taker: number and lease end of its last take, 1 if there was
--                     more to take, then the IDs it got
-- KEYS[11]  stats     hash, counter to number
-- KEYS[12]  sizes     hash, the size of the largest record
-- KEYS[13]  idle      zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[14]  turn      zset, key of waiting jobs scored by its pass
-- KEYS[15]  lane      zset, place and ID of every ready job that has a key
-- KEYS[16]  keyed     hash, job ID to its place in a lane
-- KEYS[17]  rules     hash, key to what is set for it
-- KEYS[18]  held      zset, key scored by the end of its hold (Unix ms)
-- KEYS[19]  parked    zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[20]  holders   zset, key and ID of every running job whose key has a limit of running jobs
-- KEYS[21]  rates     zset, key scored by its tat (Unix µs)
-- KEYS[22]  blockers  zset, place and ID of every job that its key waits for (see limits)
-- KEYS[23]  lags      zset, key that a limit has stopped scored by the pass that it had
-- ARGV[1]   number    number of this take, higher than that of the one before
-- ARGV[2]   since     number of the first take without a reply; equal to number: none
-- ARGV[3]   limit     most jobs to take, at most 1,000 (unpack has a stack limit). 0: give back the
--                     jobs of those takes
-- ARGV[4]   bytes     most bytes of records to return; always at least one job
-- ARGV[5]   lease     length of the lease in ms
-- ARGV[6]   free      how many jobs can start immediately. Beyond that, no job with limited retries
--                     is taken (flag 1 of its record), because a crash counts as an attempt of
--                     every taken job
-- ARGV[7]   place     where the jobs go that are given back: head or tail of ready
-- ARGV[8]   name      under which the server waits if this take leaves ready empty and a slot
--                     free; empty: it does not wait
-- ARGV[9]   listed    1: the name may be in idle. A take that does not add it removes it
-- ARGV[10]  enough    jobs are gathered until there are so many; 0: they are not gathered
-- ARGV[11]  within    ms, how long they are gathered at most
-- ARGV[12]  groups    most keys to take jobs of, each at most a batch; 0: jobs of all keys are
--                     gathered together
-- ARGV[13]  batch     most jobs of a batch
--
-- The parts of the prelude say more: take_repeat what a take gets of those before it, take_bounds
-- and take_gather how many jobs it may lease, take_heads which keys are served, take_rations what
-- their limits let it lease, and take_list which IDs in handoff and ready count. At most 1,000 IDs
-- are looked at. A request that arrives after a later one does nothing.
--
-- A server waits if its name is in idle. A script that puts jobs into ready takes the name off and
-- publishes the topic on <channel>:<name>. A take adds the name if it leaves both lists empty and
-- has leased fewer jobs than can start immediately.
--
-- Returns {'ok', now, lease end (a score), ids, records, attempts, moved, more, waits, bound,
-- left}. attempts and moved are false if no job of the topic has any. more is 1 if bytes ended the
-- take, if it has looked at 1,000 IDs, or if jobs were given back: there is more to take. waits is
-- 1 if the server waits now; after 0 it must ask again when it can start a job. bound is missing in
-- a repeated reply, and if the topic has no limits. Otherwise it says what ended the take: free,
-- limit (of running jobs), rate, or on (nothing of these). left is the time until the next start in
-- µs, with rate. limited is 1 if limits of keys are in force, and 2 if the take has parked keys
-- because of them: then the timer has to promote, so that it knows when they get turns. It is 3 if
-- keys are parked for other reasons only.
--
-- Other replies are {'empty', now, waits, limited}, {'busy', now, waits, limited} (jobs wait for an
-- idle worker), {'paused', now, until when or 0} and {'held', now, until when} (idle is unchanged),
-- {'limit', now}, {'rate', now, left}, {'gather', now, ms that it still takes, waits}, and with
-- limit 0 {'returned', now, ids}. 'ok' without IDs and with waits 0 means: ask again.
-- Cost: O(limit × log N), and no more than bytes, or one record, are read.

-- Gives: time now

-- now is Redis's clock in Unix ms. All due times and lease ends are compared with it and with no
-- other clock.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

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

-- Gives: paused
-- Expects: now

-- paused reports whether a topic is paused, by the fields paused and until of its meta. A damaged
-- until counts as none: the pause has no end until somebody resumes the topic.
local function paused(pause)
  return pause[1] and now < (tonumber(pause[2] or nil) or math.huge)
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

-- Gives: line_up
-- Expects: key_of offer

-- line_up puts jobs that have places into their lanes. It returns their number, and a list of the
-- other jobs.
local function line_up(turn, lane, keyed, ids)
  local places = redis.call('HMGET', keyed, unpack(ids))
  local entries, n, keys, seen, plain = {}, 0, {}, {}, {}
  for i, id in ipairs(ids) do
    local place = places[i]
    local key = place and key_of(place)
    if key then
      entries[n + 1], entries[n + 2] = 0, place .. id
      n = n + 2
      if not seen[key] then
        seen[key], keys[#keys + 1] = true, key
      end
    else
      plain[#plain + 1] = id
    end
  end
  if n > 0 then
    offer(turn, keys)
    redis.call('ZADD', lane, unpack(entries))
  end
  return n / 2, plain
end

-- Gives: flow_of rule_of

-- flow_of reads the limits of a topic that hold for each of its keys, from the field flow of meta:
-- the most running jobs, the time of one start in µs, and how many starts can be made at once. 0 is
-- no limit.
local function flow_of(flow)
  local running, emit, burst = string.match(flow or '', '^' .. string.rep('%d+ ', 6)
    .. '(%d+) (%d+) (%d+)')
  return tonumber(running or 0), tonumber(emit or 0), math.max(1, tonumber(burst or 1))
end

-- rule_of reads what is set for a key: "<weight>", or "<weight> <running> <emit> <burst> <starts>
-- <period> <strict>". It returns the weight and the three limits. Those that are 0 are the given
-- ones, which hold for each key.
local function rule_of(rule, running, emit, burst)
  local weight, rest = string.match(rule or '', '^(%d+)(.*)$')
  local most, period, size = string.match(rest or '', '^ (%d+) (%d+) (%d+)')
  if tonumber(most or 0) > 0 then
    running = tonumber(most)
  end
  if tonumber(period or 0) > 0 then
    emit, burst = tonumber(period), math.max(1, tonumber(size))
  end
  return math.max(1, tonumber(weight or 1)), running, emit, burst
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

-- order: whether the jobs of a key run in their order. The part place has that order, and the parts
-- block and take_rations hold a key back.
-- Gives: order_of

-- order_of reads from the field flow of meta whether the jobs of each key run in their order, and
-- whether a dead one blocks its key. Later releases may write more numbers.
local function order_of(flow)
  local ordered, halts = string.match(type(flow) == 'string' and flow .. ' ' or '',
    '^' .. string.rep('%d+ ', 12) .. '(%d) (%d) ')
  return ordered == '1', halts == '1'
end
local ready, handoff, pool, bucket = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local leases, dead, attempts, moved = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local meta, receipt, stats, sizes, idle = KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local turn, lane, keyed, rules, held = KEYS[14], KEYS[15], KEYS[16], KEYS[17], KEYS[18]
local parked, holders, rates, blockers = KEYS[19], KEYS[20], KEYS[21], KEYS[22]
local lags = KEYS[23]
local number, since, limit, bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local lease, free, place = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local name, listed = ARGV[8], ARGV[9]
local enough, within = tonumber(ARGV[10]), tonumber(ARGV[11])
local groups, batch = tonumber(ARGV[12]), tonumber(ARGV[13])

-- The end contains the microseconds of the present. So no two leases of a job end at the same time,
-- and a fence identifies one of them.
local lease_end = string.format('%.0f.%03d', now + lease, time[2] % 1000)

-- take_reply: the reply of a take, and the receipt of it.
-- Gives: answer note known
-- Expects: now number lease name attempts moved receipt idle

-- answer adds the known data of the jobs to their records. With pcall: missing data must not cost
-- the jobs.
local function answer(ending, ids, records, more, waits, bound, left, limited)
  local tried, due = false, false
  if #ids > 0 and redis.call('EXISTS', attempts, moved) > 0 then
    tried = redis.pcall('HMGET', attempts, unpack(ids))
    due = redis.pcall('HMGET', moved, unpack(ids))
  end
  tried, due = tried and not tried.err and tried, due and not due.err and due
  if limited then -- a nil would end the reply
    bound, left = bound or false, left or false
  end
  return {'ok', now, ending, ids, records, tried, due, more and 1 or 0, waits, bound, left,
    limited}
end

-- note writes the receipt. With pcall: at worst the jobs wait until their leases are over.
local function note(ending, more, ids)
  redis.pcall('DEL', receipt)
  redis.pcall('RPUSH', receipt, number, ending, more and 1 or 0, unpack(ids))
  redis.pcall('PEXPIRE', receipt, lease)
end

-- known returns 1 if the server is in idle, without a change.
local function known()
  local since_when = name ~= '' and redis.pcall('ZSCORE', idle, name)
  return type(since_when) == 'string' and 1 or 0
end

-- take_rate: what the limits of a topic say of this take, and its starts.
-- Gives: number_of bound at emit burst us left start
-- Expects: time meta
--
-- Starts are counted by the GCRA: tat is the time at which the bucket would be empty.

-- number_of reads a field of meta. A damaged one counts as none: it must not end every take.
local function number_of(text)
  return tonumber(text or 0) or 0
end

-- bound is what limits the take, and at the tat. emit is the time of one start, and burst how many
-- starts can be made at once.
local bound, at, emit, burst = nil, nil, 0, 0
local us = time[1] * 1000000 + time[2]

-- left returns the time until the next start.
local function left()
  return math.max(0, at - (burst - 1) * emit - us)
end

-- start counts the starts of this take so far. It comes before the leases: if the script ended
-- after it, a start would be lost and not made twice.
local function start(jobs)
  if at then
    redis.call('HSET', meta, 'tat', string.format('%.0f', at + jobs * emit))
  end
end

-- take_read: what a take has leased so far, and how it reads the records of candidates.
-- Gives: ids records seen got looked read busy more look_up
-- Expects: bytes sizes pool bucket dead leases

local ids, records, seen = {}, {}, {} -- of the jobs that are leased, or about to be
local got, looked = 0, 0 -- how many those are, and how many IDs were looked at
local read = 0 -- bytes of the records
local busy, more = false, false -- whether the slots or the bytes are used up

-- scores looks up IDs in a zset. Most topics have no dead jobs, and often the bucket is empty too:
-- that costs nothing.
local function scores(zset, waiting)
  return redis.call('EXISTS', zset) == 1 and redis.call('ZMSCORE', zset, unpack(waiting)) or {}
end

-- bounded reports whether n records can exceed bytes, together with those read before. It assumes
-- the largest size.
local largest
local function bounded(n)
  if not largest then
    local noted = redis.pcall('HGET', sizes, 'largest')
    largest = type(noted) == 'table' and bytes or tonumber(noted or nil) or 2000
  end
  return read + n * largest > bytes
end

-- look_up reads the records of IDs that wait. It returns how many of them it covers; the scores
-- that they have in bucket, in dead and, if leased is set, in leases; and the records, false for an
-- ID that does not count. If all records can be too large (strict: if even a single one can), it
-- covers no more than most that count, and ends before a record that would exceed bytes.
local function look_up(waiting, most, leased, strict)
  local n = #waiting
  local delayed, buried = scores(bucket, waiting), scores(dead, waiting)
  leased = leased and scores(leases, waiting)
  if not ((n > 1 or strict) and bounded(n)) then
    return n, delayed, buried, leased, redis.call('HMGET', pool, unpack(waiting))
  end
  local wanted, places, found, total = {}, {}, {}, read
  for i = 1, n do
    if #wanted == most then
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
      wanted[#wanted + 1], places[#places + 1] = waiting[i], i
    end
  end
  for i, record in ipairs(#wanted > 0 and redis.call('HMGET', pool, unpack(wanted)) or {}) do
    found[places[i]] = record
  end
  return n, delayed, buried, leased, found
end

local last = tonumber(redis.call('LINDEX', receipt, 0) or nil)
if last and last > tonumber(number) then
  return {'empty', now, 0} -- abandoned by the server, and late: see prelude/receipt.lua
end
if last and last >= since then

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

-- take_repeat: what a take gets of those before it whose replies were lost.
-- Gives: repeated
-- Expects: now count line_up rouse release answer note known limit bytes place ready pool
-- Expects: leases receipt stats turn lane keyed lease_end lane_of free_keys holders parked
--
-- A server without a reply asks again, with a new number and for fewer jobs. If one of the takes
-- since then was executed, its receipt names the jobs. As many as fit are returned, with a lease
-- that begins now. The others go back in their order, and no attempt is used up. Jobs that were
-- cancelled or replaced meanwhile are left out: no handler of them was ever called, so they give
-- their places up (see straggler). A request that arrives twice gets the first reply again, and
-- frees no place: it can be a late copy of one whose reply has arrived.

-- return_jobs ends leases. The jobs go back to ready, or into their lanes.
local function return_jobs(jobs)
  local plain = jobs
  if redis.call('EXISTS', keyed) == 1 then
    local laned
    laned, plain = line_up(turn, lane, keyed, jobs)
    if laned > 0 then
      rouse(ready, laned)
    end
  end
  if #plain > 0 and place == 'tail' then
    redis.call('RPUSH', ready, unpack(plain))
  elseif #plain > 0 then
    local reversed = {}
    for i, id in ipairs(plain) do
      reversed[#plain + 1 - i] = id
    end
    redis.call('LPUSH', ready, unpack(reversed))
  end
  release(leases, jobs)
  count(stats, 'returned', #jobs)
end

-- unstraggle frees the places that lost jobs of a take have kept until the end of its lease. With
-- pcall: holders and parked of a wrong type have no places and no keys.
local function unstraggle(ending, lost)
  local till = '1' .. string.format('%017.3f', tonumber(ending) or 0)
  local first = lane_of('') .. till
  local past = string.sub(first, 1, -2) .. string.char(string.byte(first, -1) + 1)
  local list, gone, keys = redis.pcall('ZRANGEBYLEX', holders, '[' .. first, '(' .. past), {}, {}
  for _, entry in ipairs(list) do
    local stop = #first + 1 + (string.byte(entry, #first + 1) or 0)
    local key, id = string.sub(entry, #first + 2, stop), string.sub(entry, stop + 1)
    if lost[id] then
      gone[#gone + 1], gone[#gone + 2] = entry, lane_of(key) .. till .. id
      local waits = key ~= '' and redis.pcall('ZSCORE', parked, key)
      keys[#keys + 1] = type(waits) == 'string' and key or nil
    end
  end
  for from = 1, #gone, 1000 do
    redis.call('ZREM', holders, unpack(gone, from, math.min(from + 999, #gone)))
  end
  if #keys > 0 then
    rouse(ready, free_keys(parked, turn, lane, keys, true))
  end
end

-- repeated replies to a take whose series has a receipt of a take since then; twice: it is that of
-- this very take. It returns nil if nothing is left of the jobs of the receipt.
local function repeated(twice)
  local kept = redis.call('LRANGE', receipt, 1, -1)
  local old_end, rest = table.remove(kept, 1), table.remove(kept, 1) == '1'
  if limit == 0 and twice then
    return {'returned', now, kept}
  end
  local mine, back, total, lost = {}, {}, 0, nil
  local ends = #kept > 0 and redis.call('ZMSCORE', leases, unpack(kept)) or {}
  for i, id in ipairs(kept) do
    local ours = ends[i] and tonumber(ends[i]) == tonumber(old_end)
    local size = ours and redis.call('HSTRLEN', pool, id) or 0
    local fits = twice or #back == 0 and #mine < limit and (total == 0 or total + size <= bytes)
    if not ours then
      lost = lost or {}
      lost[id] = true
    elseif size > 0 and fits then
      total = total + size
      mine[#mine + 1] = id
    elseif size > 0 then
      back[#back + 1] = id
    end
  end
  if lost and not twice then
    unstraggle(old_end, lost)
  end
  if not twice then
    rest = #back > 0
    redis.call('ZREM', leases, '') -- after a deletion, the script can write at maxmemory
    if #back > 0 then
      return_jobs(back)
    end
    local grants = {}
    for _, id in ipairs(mine) do
      grants[#grants + 1] = lease_end
      grants[#grants + 1] = id
    end
    if #mine > 0 then
      redis.call('ZADD', leases, 'XX', unpack(grants))
      old_end = redis.call('ZSCORE', leases, mine[1]) -- as Redis writes it from now on
    end
    if limit == 0 then
      note(old_end, false, back)
      return {'returned', now, back}
    end
    note(old_end, rest, mine)
  end
  if #mine > 0 then
    return answer(old_end, mine, redis.call('HMGET', pool, unpack(mine)), rest, known())
  elseif twice then
    return {'empty', now, known()}
  end
end
  local reply = repeated(last == tonumber(number))
  if reply then
    return reply
  end
end
if since < tonumber(number) then
  note('0', false, {}) -- none of those takes gets anything if it comes after this one
end
if limit == 0 then
  return {'returned', now, {}}
end

local set = redis.call('HMGET', meta, 'paused', 'until', 'hold', 'flow', 'tat', 'promise',
  'limited', 'gather')
local flow = set[4]
if paused(set) then
  return {'paused', now, number_of(set[2])}
elseif now < number_of(set[3]) then
  return {'held', now, tonumber(set[3])}
end

-- The limits of each key, unless it has its own.
local key_running, key_emit, key_burst = flow_of(flow)
local by_key = key_running > 0 or key_emit > 0 or number_of(set[7]) > 0
local limited = by_key and 1 or nil -- in the reply
if flow or by_key then

-- take_bounds: the limits of a topic, as far as they bound a take as a whole (see limits).
-- Gives: bounds refusal
-- Expects: now number_of bound at emit burst us left limit free listed name leases holders meta
-- Expects: idle
--
-- A take leases no more than can start immediately. The number of running jobs is that of the
-- leases and of the stragglers, so it cannot leak. A take that is refused because of the rate gets
-- the time of a start that no other server was promised. If it comes a moment before the next
-- start, it gets that one, because it was on its way there.

-- bounds returns how many jobs the take may lease, before it looks at any. limits and tat are the
-- fields flow and tat of meta; per_key: limits of keys are in force.
local function bounds(limits, tat, per_key)
  local most = limit
  local function cap(n, why)
    if n < most then
      most, bound = n, why
    end
  end
  local running, period, size = string.match(limits or '', '^(%d+) (%d+) (%d+) %d+ %d+ %d+')
  running, emit, burst = number_of(running), number_of(period), math.max(1, number_of(size))
  if running > 0 or emit > 0 or per_key then
    bound = 'on'
    cap(free, 'free')
  end
  if running > 0 then
    local alive = '[' .. string.char(0) .. '1' .. string.format('%017.3f', now + 0.001)
    local stragglers = redis.pcall('ZLEXCOUNT', holders, alive, '(' .. string.char(1))
    stragglers = type(stragglers) == 'number' and stragglers or 0
    cap(running - math.max(0, redis.call('ZCARD', leases) - 1) - stragglers, 'limit') -- no anchor
  end
  if emit > 0 then
    tat = number_of(tat)
    if tat > us + burst * emit then -- the clock was set back, or the limits have changed
      tat = us + burst * emit
      redis.pcall('HSET', meta, 'tat', string.format('%.0f', tat)) -- so that this stall ends
    end
    at = math.max(us, tat)
    cap(math.floor((us + burst * emit - at) / emit), 'rate')
  end
  return most
end

-- refusal is the reply to a take that may lease nothing although jobs wait. per_key: see limited in
-- the reply of take.
local function refusal(promised, per_key)
  if listed == '1' then
    redis.pcall('ZREM', idle, name)
  end
  if bound == 'free' then
    return {'busy', now, 0, per_key}
  elseif bound == 'limit' then
    return {'limit', now}
  end
  local early = left()
  if early <= math.min(emit / 2, 100000) then
    return {'rate', now, math.ceil(early)}
  end
  -- Every other server that is refused gets another start. One that is not used is lost.
  local next_start = us + early
  local promise = math.max(next_start, number_of(promised) + emit)
  if promise - us > 1000000 then
    promise = next_start
  end
  redis.pcall('HSET', meta, 'promise', string.format('%.0f', promise))
  return {'rate', now, math.ceil(promise - us)}
end
  limit = bounds(flow, set[5], by_key)
  if limit <= 0 and redis.call('EXISTS', ready, handoff, turn) > 0 then
    return refusal(set[6], limited)
  end
end

local kept_back = false -- jobs stay because they are gathered for another batch
if enough > 0 and groups == 0 then

-- take_gather: jobs of all keys that are gathered for a batch.
-- Gives: gather
-- Expects: now limit enough within batch name by_key key_running rule_of number_of lane_range ready
-- Expects: handoff lane turn held parked holders rules meta idle
--
-- Jobs are gathered from the take that finds too few of them on. The field gather of meta has the
-- end of that. The server waits in idle meanwhile, because each job that becomes ready can be the
-- last one that is missing. Jobs that do not fill another batch, and are too few for one, stay.

-- able counts the ready jobs that have keys and can run: those of held and parked keys cannot, and
-- those of a key with a limit only as far as that allows. It looks at no more keys than a take can
-- serve, and takes the jobs of others for enough.
local function able()
  if redis.call('EXISTS', held, parked) == 0 and not by_key then
    return redis.call('ZCARD', lane)
  end
  local keys, jobs = redis.pcall('ZRANGE', turn, 0, 249), 0
  if #keys == 0 then
    return 0
  end
  local holds = redis.pcall('ZMSCORE', held, unpack(keys))
  local waits = by_key and redis.pcall('ZMSCORE', parked, unpack(keys)) or {}
  local ruled = by_key and redis.pcall('HMGET', rules, unpack(keys)) or {}
  for i, key in ipairs(keys) do
    local stopped = math.max(number_of(holds[i]), number_of(waits[i])) > now
    if key ~= '' and not stopped then
      local from, to = lane_range(key)
      local n = redis.call('ZLEXCOUNT', lane, from, to)
      local _, running = rule_of(ruled[i] or nil, key_running, 0, 1)
      if running > 0 then
        n = math.min(n, math.max(0, running - redis.call('ZLEXCOUNT', holders, from, to)))
      end
      jobs = jobs + n
    end
  end
  if #keys == 250 and redis.call('ZCARD', turn) > 250 then -- those behind can be enough
    jobs = math.max(jobs, enough)
  end
  return jobs
end

-- gather returns how many jobs the take may lease, and the reply if it leases none because they are
-- gathered. ending is the end of that, or 0.
local function gather(ending)
  local jobs = redis.call('LLEN', ready) + redis.call('LLEN', handoff)
  if jobs > 0 then -- without the wake-ups
    jobs = jobs - #redis.call('LPOS', ready, '', 'COUNT', 0, 'MAXLEN', 1000)
      - #redis.call('LPOS', handoff, '', 'COUNT', 0, 'MAXLEN', 1000)
  end
  jobs = jobs + able()
  local over = ending > 0 and ending <= now
  if jobs > 0 and jobs < enough then
    if ending == 0 or ending > now + within then
      ending = now + within
      redis.call('HDEL', meta, 'gather') -- after a deletion, the script can write at maxmemory
      redis.call('HSET', meta, 'gather', string.format('%.0f', ending))
    end
    if ending > now then
      local put = name ~= '' and redis.pcall('ZADD', idle, now, name)
      return 0, {'gather', now, ending - now, type(put) == 'number' and 1 or 0}
    end
  end
  if ending > 0 then
    redis.call('HDEL', meta, 'gather')
  end
  local rest = jobs % batch
  if not over and rest > 0 and rest < enough then
    return math.min(limit, jobs - rest)
  end
  return limit
end
  local most, reply = gather(number_of(set[8]))
  if reply then
    return reply
  elseif most < limit then
    limit, kept_back, bound = most, true, bound and 'on'
  end
end

-- What serves keys is defined only where keys take turns: every call defines its functions anew.
local serve_keys, put_stray, rounded
local refilled = false -- whether put_stray has put a job into ready

-- take_list: takes jobs without a key, of handoff and ready.
-- Gives: dry alone take_list
-- Expects: limit free lease_end has_key anchor ids records seen got looked read busy more look_up
-- Expects: start put_stray ready handoff leases
--
-- An ID counts only if it has a record and is in neither bucket nor leases nor dead. All others are
-- leftovers of a cancel, a reschedule or a second push, and are dropped here. So is the empty ID,
-- which is only a wake-up. At most 1,000 IDs are looked at.

local dry = limit <= 0 -- both lists are known to be empty

-- Nearly always no lease has that end yet. Then this call has leased all jobs that have it
-- afterwards, and no ID needs a look-up beforehand.
local alone = limit >= 8 and redis.call('ZCOUNT', leases, lease_end, lease_end) == 0

-- own keeps those of the first n IDs that this call has leased, each once. The others already had a
-- lease, and still have it.
local function own(n)
  local ends, kept, met = redis.call('ZMSCORE', leases, unpack(ids, 1, n)), 0, {}
  for i = 1, n do
    if ends[i] and tonumber(ends[i]) == tonumber(lease_end) and not met[ids[i]] then
      kept = kept + 1
      met[ids[i]], ids[kept], records[kept] = true, ids[i], records[i]
    end
  end
  for i = n, kept + 1, -1 do
    ids[i], records[i] = nil, nil
  end
  return kept
end

-- taken reports whether this call has taken a job of that ID already.
local function taken(id)
  for _, other in ipairs(ids) do
    if other == id then
      return true
    end
  end
  return false
end

-- head reads the first IDs of both lists. It returns them, and how many are of handoff.
local function head(most)
  local waiting = redis.call('LRANGE', handoff, 0, most - 1)
  local handed = #waiting
  if handed == 0 then
    return redis.call('LRANGE', ready, 0, most - 1), 0
  elseif handed < most then
    for i, id in ipairs(redis.call('LRANGE', ready, 0, most - handed - 1)) do
      waiting[handed + i] = id
    end
  end
  return waiting, handed
end

-- take_list takes jobs until this call has got so many. laned: keys take turns.
local function take_list(most_jobs, laned)
  while got < most_jobs and looked < 1000 and not busy and not more and not dry do
    -- Everything is read before anything is written, so a key of a wrong type costs no ID. Many
    -- more leftovers can follow the first ones.
    local most = looked == 0 and most_jobs or math.min(math.max(most_jobs - got, 64), 1000 - looked)
    local waiting, handed = head(most)
    if #waiting == 0 then
      dry = true
      break
    end
    local n, delayed, buried, leased, found =
      look_up(waiting, most_jobs - got, not alone, read > 0)
    local used, before = 0, got
    local jobs, size, list, contents, blind = got, read, ids, records, alone
    local grants, granted = {'NX', '+inf', anchor()}, 3
    for i = 1, n do
      local id, record = waiting[i], found[i]
      if jobs == most_jobs then
        break
      end
      local new = record and not delayed[i] and not buried[i]
        and (blind or not leased[i] and not seen[id])
      if new and laned and has_key(record) then
        if not (blind and redis.call('ZSCORE', leases, id)) then
          put_stray(id, record)
        end
      elseif new then
        busy = jobs >= free and (string.byte(record, 10) or 0) % 2 == 1
          and not (blind and (redis.call('ZSCORE', leases, id) or taken(id)))
        if busy then
          break
        end
        jobs = jobs + 1
        list[jobs], contents[jobs] = id, record
        size = size + #record
        if not blind then
          seen[id] = true
        end
        grants[granted + 1], grants[granted + 2] = lease_end, id
        granted = granted + 2
      end
      used = i
    end
    got, read = jobs, size
    more = n < #waiting and got < most_jobs and not busy
    dry = #waiting < most and used == #waiting
    looked = looked + used
    if handed > 0 then
      redis.call('LTRIM', handoff, math.min(used, handed), -1)
    end
    if used > handed then
      redis.call('LTRIM', ready, used - handed, -1)
    end
    if got > before then -- after a deletion, so the script can write at maxmemory
      start(got)
      redis.call('ZADD', leases, unpack(grants))
      if alone and redis.call('ZCOUNT', leases, lease_end, lease_end) < got then
        got = own(got)
        -- One leftover can precede many: from here on each ID is looked up before it is leased.
        alone, busy = false, false
      end
    end
  end
end

local most_jobs, laned, pass = limit, nil, nil -- laned: the jobs of keys that have been taken
if limit > 0 and redis.call('EXISTS', turn, held, parked) > 0
  and type(redis.pcall('ZCARD', turn)) == 'number' then -- a wrong type stops keys alone
  limit = math.min(limit, 250)
  groups = groups > 0 and math.max(1, math.min(groups, math.floor(limit / batch))) or 0
  if redis.call('EXISTS', ready, handoff) > 0 then
    redis.call('ZREM', lane, '') -- after a deletion, the script can write at maxmemory
    offer(turn, {''})
  end

-- sweep: drops entries of holders that nobody else drops.
-- Gives: sweep
-- Expects: now key_of held_by till_of

-- sweep looks at up to 100 entries, from a place on that depends on the time, if there are more of
-- them than leases. The job of such an entry has ended, and its server has died before it could say
-- so with unpark.
local function sweep(runs_of, leased, places)
  local n = redis.call('ZCARD', runs_of)
  if n <= redis.call('ZCARD', leased) then
    return
  end
  local first = math.max(0, math.min(now % n, n - 100))
  local list, jobs, keys = redis.call('ZRANGE', runs_of, first, first + 99), {}, {}
  for i, entry in ipairs(list) do
    keys[i] = string.sub(entry, 2, 1 + (string.byte(entry) or 0))
    jobs[i] = held_by(keys[i], entry)
  end
  local ends = redis.call('ZMSCORE', leased, unpack(jobs))
  local spots, stale = redis.call('HMGET', places, unpack(jobs)), {}
  for i, entry in ipairs(list) do
    local till = till_of(keys[i], entry)
    if not till and not (ends[i] and spots[i] and key_of(spots[i]) == keys[i])
      or till and till <= now then
      stale[#stale + 1] = entry
    end
  end
  if #stale > 0 then
    redis.call('ZREM', runs_of, unpack(stale))
  end
end

-- take_stray: ready jobs that are in the wrong place.
-- Gives: stray
-- Expects: now key_of has_key of_record place_of offer refilled ready sizes turn lane keyed

-- stray puts a ready job that has a key into its lane, from where an older release has put it. A
-- job without a key goes to ready: an older release has stored it under the ID of one with a key.
-- It returns the key, or nil and sets refilled.
local function stray(id, record)
  redis.call('ZREM', lane, '') -- after a deletion, the script can write at maxmemory
  if not has_key(record) then
    refilled = true
    redis.call('RPUSH', ready, id)
    redis.call('HDEL', keyed, id)
    return nil
  end
  local spot = redis.call('HGET', keyed, id)
  if not spot or not of_record(spot, record) then
    spot = place_of(record, now, redis.call('HINCRBY', sizes, 'number', 1))
    redis.call('HSET', keyed, id, spot)
  end
  local key = key_of(spot)
  offer(turn, {key})
  redis.call('ZADD', lane, 0, spot .. id)
  return key
end

-- take_rations: what the limits of a key let a take lease of its jobs (see limits, key_limits).
-- Gives: ordered halts ration book
-- Expects: now us flow order_of lane_range key_of held_by till_of sweep looked bucket dead leases
-- Expects: lane keyed holders rates blockers
--
-- A start counts by the GCRA, as for the topic. Running jobs are counted in holders. An entry there
-- counts only while its job has a lease, so it cannot leak. That of a straggler counts until its
-- lease would be over: its job was cancelled or replaced, and its handler may still run.
--
-- If the jobs of each key run in their order, one of them runs at a time. A key is parked while a
-- job comes first that is in blockers: until it is due, or if it is dead, for ten minutes at a
-- time. An entry of blockers counts only while its job is in bucket or in dead.

local ordered, halts = order_of(flow)

-- census counts the running jobs of a key, and drops entries of those that have ended. It returns
-- when the first of their leases ends too. all is how many entries there are. It looks at 1,000 of
-- them, and counts those behind: too few start rather than too many.
local function census(key, all)
  local from, to = lane_range(key)
  local list, jobs = redis.call('ZRANGEBYLEX', holders, from, to, 'LIMIT', 0, 1000), {}
  for i, entry in ipairs(list) do
    jobs[i] = held_by(key, entry)
  end
  local ends = redis.call('ZMSCORE', leases, unpack(jobs))
  local spots = redis.call('HMGET', keyed, unpack(jobs))
  local first, stale = nil, {}
  for i, entry in ipairs(list) do
    local till = till_of(key, entry)
      or ends[i] and spots[i] and key_of(spots[i]) == key and tonumber(ends[i])
    if till and (till > now or not till_of(key, entry)) then
      first = math.min(first or math.huge, till)
    else
      stale[#stale + 1] = entry
    end
  end
  if #stale > 0 then
    redis.call('ZREM', holders, unpack(stale))
  end
  looked = looked + #list
  return all - #stale, first
end

-- blocked returns until when a key waits for a job that comes first and is not ready, or nil. It
-- drops entries of blockers that do not count.
local function blocked(key)
  local from, to = lane_range(key)
  for _ = 1, 10 do
    local entry = redis.call('ZRANGEBYLEX', blockers, from, to, 'LIMIT', 0, 1)[1]
    if not entry then
      return nil
    end
    looked = looked + 1
    local _, spot, id = key_of(entry)
    local sound = spot and redis.call('HGET', keyed, id) == spot
    local due = sound and redis.call('ZSCORE', bucket, id)
    if due or sound and halts and redis.call('ZSCORE', dead, id) then
      if redis.call('ZRANGEBYLEX', lane, from, '(' .. entry, 'LIMIT', 0, 1)[1] then
        return nil
      end
      return due and math.ceil(due) or now + 600000
    end
    redis.call('ZREM', blockers, entry)
  end
  return now -- there can be more of them
end

-- A ration is what the limits of a key say: room is how many of its jobs may start now. If that is
-- 0, till is when to look again. counts is true if its running jobs are counted. With a rate, tat
-- is that of the key, and emit the time of one start.
local function ration(key, running, period, size)
  local r = {room = math.huge, counts = running > 0}
  if period > 0 then
    local tat = tonumber(redis.call('ZSCORE', rates, key) or nil) or 0
    if tat > us + size * period then -- the clock was set back, or the limits have changed
      tat = us + size * period
      redis.pcall('ZADD', rates, string.format('%.0f', tat), key)
    end
    r.emit, r.tat = period, math.max(us, tat)
    r.room = math.max(0, math.floor((us + size * period - r.tat) / period))
    r.till = (r.tat - (size - 1) * period) / 1000 -- to the microsecond
  end
  if running > 0 and r.room > 0 then
    local n = redis.call('ZLEXCOUNT', holders, lane_range(key))
    if n >= running then
      local first
      n, first = census(key, n)
      r.till = math.ceil(first or now)
    end
    r.room = math.min(r.room, math.max(0, running - n))
  end
  local till = ordered and r.room > 0 and blocked(key)
  if till then
    r.room, r.till = 0, till
  end
  return r
end

-- keep_rates removes tats of the past, at most so many: they are as good as none. The others expire
-- a minute after the last one. So rates does not grow with the keys that ever were, even if nobody
-- promotes.
local function keep_rates(most)
  local clock = string.format('%.0f', us)
  local past = redis.call('ZRANGEBYSCORE', rates, '-inf', clock, 'LIMIT', 0, most)
  if #past > 0 then
    redis.call('ZREM', rates, unpack(past))
  end
  local top = redis.call('ZRANGE', rates, -1, -1, 'WITHSCORES')[2]
  if top then
    redis.pcall('PEXPIRE', rates, string.format('%.0f', (top - us) / 1000 + 60000))
  end
end

-- book counts the starts of keys, and their running jobs. It comes before the leases: if the script
-- ended after it, a start would be lost and not made twice.
local function book(names, rations, taken_of, holding)
  local tats = {}
  for i, r in ipairs(rations) do
    if r and r.emit and taken_of[i] then
      tats[#tats + 1] = string.format('%.0f', r.tat + taken_of[i] * r.emit)
      tats[#tats + 1] = names[i]
    end
  end
  if #tats > 0 then
    redis.call('ZADD', rates, unpack(tats))
    keep_rates(#tats)
  end
  if #holding > 0 then
    sweep(holders, leases, keyed) -- before the new ones, which have no lease yet
    redis.call('ZADD', holders, unpack(holding))
  end
end

-- take_lags: the passes of keys, and what those that were parked have missed.
-- Gives: whole_pass seat_of facts_of lag_of keep_lags
-- Expects: rule_of pass_steps turn rules lags
--
-- The others go on while a limit stops a key. So when it comes back, its pass is lower than theirs,
-- and it catches up. It does so for at most two turns of each key that it would keep waiting: a key
-- whose limit allows less than its share would fall behind without end.

-- whole_pass rounds a pass to whole steps.
local function whole_pass(sum)
  return math.floor(sum * pass_steps + 0.5) / pass_steps
end

-- seat_of returns the first pass of a key that has just joined, and the pass before which it has
-- done so. It returns nil for any other key.
local function seat_of(noted, weight)
  if noted * pass_steps % 1 == 0.5 then
    local joined = math.floor(noted * pass_steps) / pass_steps
    return whole_pass(joined + 1 / weight), joined
  end
end

-- facts_of reads what a hash or a zset says of some keys in turn. With pcall: one of a wrong type
-- says nothing, and must not stop all keys.
local function facts_of(command, source, keys)
  if #keys == 0 or redis.call('EXISTS', source) == 0 then
    return {}
  end
  local facts = redis.pcall(command, source, unpack(keys))
  return facts.err and {} or facts
end

-- The passes of more keys near the head than these are not looked at.
local nearest, least = 15, nil

-- lag_of returns the pass of a key that was parked. lag is the one that it had, and most the
-- highest one that it gets.
local function lag_of(lag, most)
  if not least then
    local list = redis.call('ZRANGE', turn, 0, nearest, 'WITHSCORES')
    local keys = {}
    for i = 1, #list, 2 do
      keys[#keys + 1] = list[i]
    end
    local ruled, was = facts_of('HMGET', rules, keys), facts_of('ZMSCORE', lags, keys)
    least = -math.huge
    for i in ipairs(keys) do
      local weight, score = rule_of(ruled[i] or nil, 0, 0, 1), tonumber(list[2 * i])
      score = seat_of(score, weight) or score
      least = math.max(least, math.min(score, tonumber(was[i] or nil) or score) - 2 / weight)
    end
  end
  return whole_pass(math.min(most, math.max(lag, least)))
end

-- keep_lags keeps the passes of keys that are parked, for ten minutes after the last one, and drops
-- those of keys that are served. It also drops some that are so low that they say nothing: their
-- keys have no jobs any more. With pcall: a pass that is lost is that of the next one.
local function keep_lags(behind, over)
  if #over > 0 then
    redis.pcall('ZREM', lags, unpack(over))
  end
  if #behind > 0 then
    redis.pcall('ZADD', lags, unpack(behind))
    local low = string.format('(%.17g', tonumber(behind[1]) - 4)
    local old = redis.pcall('ZRANGEBYSCORE', lags, '-inf', low, 'LIMIT', 0, #behind)
    if #old > 0 then
      redis.pcall('ZREM', lags, unpack(old))
    end
    redis.pcall('PEXPIRE', lags, 600000)
  end
end

-- take_heads: finds the keys whose turn it is.
-- Gives: heads
-- Expects: now enough within groups limited by_key rule_of lane_range key_of key_running key_emit
-- Expects: key_burst looked ordered ration seat_of facts_of lag_of keep_lags turn lane rules held
-- Expects: parked lags
--
-- A key that is held loses its turn. So does a key that has reached one of its limits, but only if
-- its turn has come: it gets an entry in parked for it. It is the next one again as soon as one of
-- its jobs ends and unpark finds that, and gets back the pass that it had. At the latest promote
-- gives it its turn: at its next start, or when the first lease of its running jobs ends. A key
-- that has just joined gets its first pass here, as if it had had a job: the others get their
-- shares first.
--
-- Jobs of a key are gathered from the due time of its first one on. Meanwhile the key is parked.

-- due_of returns when the job of an entry in lane was due.
local function due_of(entry)
  local _, spot = key_of(entry)
  local ahead = tonumber(string.sub(spot, -16, -9), 16) or 2147483648
  return (tonumber(string.sub(spot, -37, -27), 16) or 0) + ahead - 2147483648
end

-- complete returns nil if the jobs of a key make a batch, and otherwise when they do. noted is what
-- it was before a job has joined, if that is known: a job that comes before the others by its head
-- start does not make them wait again.
local function complete(key, noted)
  local from, to = lane_range(key)
  local entry = redis.call('ZRANGEBYLEX', lane, from, to, 'LIMIT', 0, 1)[1]
  if not entry or redis.call('ZLEXCOUNT', lane, from, to) >= enough then
    return nil
  end
  local begin = due_of(entry)
  if begin + within > now and not noted then
    local entries = redis.call('ZRANGEBYLEX', lane, from, to, 'LIMIT', 0, enough)
    for i = 2, #entries do
      begin = math.min(begin, due_of(entries[i]))
    end
  end
  local till = math.min(begin + within, tonumber(noted or nil) or math.huge)
  return till > now and till or nil
end

-- portion reads some keys in turn from a rank on, with their passes, and whether one of them has
-- just joined.
local function portion(from, most)
  local list = redis.call('ZRANGE', turn, from, from + most - 1, 'WITHSCORES')
  local keys, passes, joined = {}, {}, false
  for i = 1, #list, 2 do
    local n = #keys + 1
    keys[n], passes[n] = list[i], tonumber(list[i + 1])
    joined = joined or seat_of(passes[n], 1)
  end
  return keys, passes, joined
end

-- leave ends the turns of keys, parks those of them that wait, and gives others their first passes.
-- behind has the passes of those that their limits stop. over lists keys that are no longer late,
-- and late those that are served, with the passes that they get back.
local function leave(stopped, waits, seats, behind, over, late)
  if #waits + #seats + #late > 0 then -- after a deletion, the script can write at maxmemory
    redis.call('ZREM', lane, '')
  end
  if #waits > 0 then -- first: if parked is of a wrong type, no key loses its turn
    redis.call('ZADD', parked, unpack(waits))
    limited = by_key and 2 or 3
  end
  if #stopped > 0 then
    redis.call('ZREM', turn, unpack(stopped))
  end
  if #seats > 0 then
    redis.call('ZADD', turn, unpack(seats))
  end
  if #late > 0 then
    redis.call('ZADD', turn, unpack(late))
  end
  keep_lags(behind, over)
end

-- heads returns the first keys in turn that are not held and whose limits are not reached, at most
-- want, with their passes, their weights and, if limits of keys are in force, their rations. The
-- keys that it has found keep the first ranks, so it goes on behind them.
local function heads(want)
  local names, passes, weights, rations = {}, {}, {}, {}
  local sure, pace, origin = 0, 0, 0 -- how many jobs the keys so far get before a pass
  local skipped, over = 0, false
  while #names < want and looked < 1000 and not over do
    local most = math.min(250, math.max(want - #names, skipped))
    local keys, turns, joined = portion(#names, most)
    local ruled, held_till = facts_of('HMGET', rules, keys), facts_of('ZMSCORE', held, keys)
    local parked_till = joined and facts_of('ZMSCORE', parked, keys) or {}
    local was = by_key and facts_of('ZMSCORE', lags, keys) or {}
    local stopped, waits, seats, first_seat = {}, {}, {}, math.huge
    local behind, served, late = {}, {}, {}
    for i, key in ipairs(keys) do
      if #names == want or looked >= 1000 or over or turns[i] >= first_seat then
        break
      end
      local weight, running, period, size = rule_of(ruled[i] or nil, key_running, key_emit,
        key_burst)
      running = ordered and 1 or running
      local seat, from = seat_of(turns[i], weight)
      if (tonumber(held_till[i] or 0) or 0) > now then
        stopped[#stopped + 1] = key
        looked = looked + 1
      elseif seat and not parked_till[i] then
        seats[#seats + 1], seats[#seats + 2] = string.format('%.17g', seat), key
        served[#served + 1] = was[i] and key or nil
        first_seat, looked = math.min(first_seat, seat), looked + 1
      else
        local r = by_key and key ~= '' and (running > 0 or period > 0)
          and ration(key, running, period, size) or nil
        local till = r and r.room <= 0 and r.till or groups > 0 and key ~= ''
          and complete(key, not r and parked_till[i])
        local score, lag = from or turns[i], tonumber(was[i] or nil)
        if not till then
          local n = #names + 1
          if lag then
            served[#served + 1], score = key, lag_of(lag, score)
            late[#late + 1], late[#late + 2] = string.format('%.17g', score), key
          end
          names[n], passes[n], weights[n], rations[n] = key, score, weight, r or false
          if r and r.room < math.huge then
            sure = sure + r.room
          else
            sure, pace, origin = sure + 1, pace + weight, origin + weight * passes[n]
          end
        elseif groups == 0 and not seat and sure + pace * turns[i] - origin >= want then
          over = true -- its turn does not come in this take
        else
          stopped[#stopped + 1] = key
          waits[#waits + 1], waits[#waits + 2] = string.format('%.3f', till), key
          if r and r.room <= 0 then
            score = math.min(lag or score, score)
            behind[#behind + 1], behind[#behind + 2] = string.format('%.17g', score), key
          end
          looked = looked + 1
        end
      end
    end
    leave(stopped, waits, seats, behind, served, late)
    skipped = skipped + #stopped + #seats / 2
    over = over or #keys < most and #seats == 0
  end
  return names, passes, weights, rations
end

-- take_turns: serves the keys whose turn it is.
-- Gives: serve
-- Expects: limit free groups batch lease_end by_key lane_range of_record place_rest whole_pass
-- Expects: holder_of anchor ids records seen got looked read busy more look_up start stray book
-- Expects: heads leases turn lane
--
-- While turn or held exists, keys take turns: those with the lowest passes are served, each with
-- its share of at most 250 jobs by its weight, and its pass grows by its jobs divided by its
-- weight. The IDs in handoff and ready are served as one more key, the empty one.

-- candidates reads the first entries of the lanes of keys. open is how many jobs may come of all of
-- them, and want those with the ones of the empty key. It returns their IDs, the entries before
-- these, the index of the key of each, and which keys have more entries (nil: not looked at).
local function candidates(open, want, names, weights, total, rations)
  local waiting, places, owner, more_of = {}, {}, {}, {}
  for i, key in ipairs(names) do
    local share = math.min(open, groups > 0 and batch or math.ceil(want * weights[i] / total))
    share = math.min(share, rations[i] and rations[i].room or share)
    if key ~= '' and share > 0 then
      local from, to = lane_range(key)
      -- One more than the share of a key shows whether others follow.
      local entries = redis.call('ZRANGEBYLEX', lane, from, to, 'LIMIT', 0, share + 1)
      more_of[i] = #entries > share
      local cut = 1 + #key + place_rest
      for j = 1, math.min(share, #entries) do
        local n = #waiting + 1
        waiting[n], places[n] = string.sub(entries[j], cut + 1), string.sub(entries[j], 1, cut)
        owner[n] = i
      end
      open = open - math.min(share, #entries)
    end
  end
  return waiting, places, owner, more_of
end

-- pass_on ends the turns of the keys that have no more jobs, and gives those of which jobs were
-- taken their next ones. The turns of the keys in stays do not end.
local function pass_on(names, passes, weights, taken_of, more_of, stays)
  local later, over = {}, {}
  for i, key in ipairs(names) do
    if more_of[i] then
      if taken_of[i] then
        local m = #later + 1
        later[m] = string.format('%.17g', whole_pass(passes[i] + taken_of[i] / weights[i]))
        later[m + 1] = key
      end
    elseif more_of[i] == false and not stays[key] then
      over[#over + 1] = key
    end
  end
  if #later > 0 then
    redis.call('ZADD', turn, unpack(later))
  end
  if #over > 0 then
    redis.call('ZREM', turn, unpack(over))
  end
end

-- serve takes jobs of the keys whose turn it is. It returns how many are to come from handoff and
-- ready, and the pass of the empty key, if it is that key's turn.
local function serve()
  local before, want = got, limit - got
  local names, passes, weights, rations = heads(groups > 0 and groups or want)
  local total = 0
  for i = 1, #names do
    total = total + weights[i]
  end

  local plain, list_pass = 0, nil
  for i, key in ipairs(names) do
    if key == '' then
      plain, list_pass = math.ceil(want * weights[i] / total), passes[i]
      plain = groups > 0 and math.min(want, batch) or plain
    end
  end
  local waiting, places, owner, more_of =
    candidates(want - plain, want, names, weights, total, rations)

  local taken_of, gone = {}, {}
  local grants, granted, strays = {'NX', '+inf', anchor()}, 3, {}
  local holding = {} -- the new entries of holders
  local found
  if #waiting > 0 then
    local n, delayed, buried, leased
    n, delayed, buried, leased, found = look_up(waiting, want - plain, true)
    for i = 1, n do
      local id, record, key = waiting[i], found[i], owner[i]
      local apart = not record or delayed[i] or buried[i] or leased[i] or seen[id]
      if not apart and of_record(places[i], record) then
        busy = got >= free and (string.byte(record, 10) or 0) % 2 == 1
        if busy then
          n = i - 1
          break
        end
        got = got + 1
        ids[got], records[got], seen[id] = id, record, true
        read = read + #record
        grants[granted + 1], grants[granted + 2] = lease_end, id
        granted = granted + 2
        taken_of[key] = (taken_of[key] or 0) + 1
        if rations[key] and rations[key].counts then
          holding[#holding + 1], holding[#holding + 2] = 0, holder_of(names[key], id)
        end
      elseif not apart then
        strays[#strays + 1] = i
      end
      gone[#gone + 1] = places[i] .. id
    end
    more = n < #waiting and not busy
    for i = n + 1, #waiting do
      more_of[owner[i]] = true
    end
  end
  looked = looked + #gone

  -- Leases come first. An entry that stays beside its lease is dropped later.
  if got > before then
    redis.call('ZREM', lane, '') -- after a deletion, the script can write at maxmemory
    start(got)
    if by_key then
      book(names, rations, taken_of, holding)
    end
    redis.call('ZADD', leases, unpack(grants))
  end
  if #gone > 0 then
    redis.call('ZREM', lane, unpack(gone))
  end
  -- An entry of a former job with that ID. A client of the release before may have enqueued it.
  local stays = {}
  for _, i in ipairs(strays) do
    if not seen[waiting[i]] then -- otherwise this call has taken it by another entry
      stays[stray(waiting[i], found[i]) or ''] = true
    end
  end
  pass_on(names, passes, weights, taken_of, more_of, stays)
  return plain, list_pass
end
  serve_keys, put_stray, rounded = serve, stray, whole_pass
  local plain
  plain, pass = serve()
  laned, most_jobs = got, groups > 0 and got + plain or limit
  dry = got == limit or plain == 0 and redis.call('EXISTS', ready, handoff) == 0
end
take_list(most_jobs, laned)

-- The empty key has had its turn. Without other keys there are no turns.
if laned then
  local others = redis.call('ZCARD', turn)
  pass = pass or tonumber(redis.call('ZSCORE', turn, '') or nil)
  if pass then
    others = others - 1
    if dry and got < limit or others == 0 then
      redis.call('ZREM', turn, '')
    elseif got > laned then
      redis.call('ZADD', turn, string.format('%.17g', rounded(pass + got - laned)), '')
    end
  end
  -- The others get what it has left.
  if others > 0 and got < limit and not busy and not more and groups == 0 then
    serve_keys()
    others = redis.call('ZCARD', turn)
  end
  -- A server that is about to block must not do so while keys have jobs, so this wakes it.
  if others > 0 and redis.call('EXISTS', ready) == 0 then
    redis.pcall('RPUSH', ready, '')
  end
  if others == 0 and by_key then -- the next pass is 0
    redis.call('DEL', lags)
  end
  more = more or others > 0 and not busy
  dry = dry and others == 0 and got < limit and not refilled
end
-- A take that has looked at as many as it may does not know what comes behind them.
more = more or kept_back and got > 0 or looked >= 1000 and got < limit and not dry and not busy

-- The server is registered by the very take that finds nothing more. So a job cannot be pushed
-- between the two.
local waits = 0
if name ~= '' and dry and got < free then
  local put = redis.pcall('ZADD', idle, now, name) -- a wait begins anew: see census
  if type(put) == 'table' and got == 0 and not string.find(put.err, 'WRONGTYPE', 1, true) then
    -- It fails where Redis takes no writes, as on a master that has become a replica. There a take
    -- must not go on reporting that nothing is ready. At maxmemory it does not fail, and after a
    -- deletion the script can write.
    redis.call('ZREM', idle, '')
    put = redis.pcall('ZADD', idle, now, name)
  end
  waits = type(put) == 'table' and 0 or 1
elseif listed == '1' then
  redis.pcall('ZREM', idle, name)
end
if looked == 0 then
  return {busy and 'busy' or 'empty', now, waits, limited}
end
if got > 0 then
  lease_end = redis.call('ZSCORE', leases, ids[1]) -- as Redis writes it from now on
  note(lease_end, more, ids)
  count(stats, 'taken', got)
end
if bound and got < limit then
  bound = 'on'
end
at = at and at + got * emit
local wait = bound == 'rate' and math.ceil(left()) or by_key and 0 or nil
return answer(lease_end, ids, records, more, waits, bound, wait, limited)
