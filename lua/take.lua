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
-- An ID counts only if it has a record and is in neither bucket nor leases nor dead. All others are
-- leftovers of a cancel, a reschedule or a second push, and are dropped here. So is the empty ID,
-- which is only a wake-up. At most 1,000 IDs are looked at.
--
-- A server without a reply asks again, with a new number and for fewer jobs. If one of the takes
-- since then was executed, its receipt names the jobs. As many as fit are returned, with a lease
-- that begins now. The others go back in their order, and no attempt is used up. A request that
-- arrives twice gets the first reply again. A request that arrives after a later one does nothing.
--
-- A server waits if its name is in idle. A script that puts jobs into ready takes the name off and
-- publishes the topic on <channel>:<name>. A take adds the name if it leaves both lists empty and
-- has leased fewer jobs than can start immediately.
--
-- If the topic has limits (see limits), a take leases no more than can start immediately. The
-- number of running jobs is that of the leases, so it cannot leak. Starts are counted by the GCRA:
-- tat is the time at which the bucket would be empty. A take that is refused because of the rate
-- gets the time of a start that no other server was promised.
--
-- While turn or held exists, keys take turns: those with the lowest passes are served, each with
-- its share of at most 250 jobs by its weight, and its pass grows by its jobs divided by its
-- weight. The IDs in handoff and ready are served as one more key, the empty one. A key that is
-- held loses its turn.
--
-- Limits of keys are those of the topic for each key (see limits), or of a key itself (see
-- key_limits). A key that has reached one loses its turn for an entry in parked. A start counts by
-- the GCRA, as for the topic. Running jobs are counted in holders. An entry there counts only while
-- its job has a lease, so it cannot leak. A parked key gets its turn back from unpark when one of
-- its jobs ends. At the latest it gets it from promote: at its next start, or when the first lease
-- of its running jobs ends.
--
-- Jobs of all keys are gathered together from the take that finds too few of them on. The field
-- gather of meta has the end of that. The server waits in idle meanwhile, because each job that
-- becomes ready can be the last one that is missing. Jobs that do not fill another batch, and are
-- too few for one, stay. Jobs of a key are gathered from the due time
-- of its first one on. Meanwhile the key is parked.
--
-- If the jobs of each key run in their order (see limits), one of them runs at a time. A key is
-- parked while a job comes first that is in blockers: until it is due, or if it is dead, for ten
-- minutes at a time. An entry of blockers counts only while its job is in bucket or in dead.
--
-- Returns {'ok', now, lease end (a score), ids, records, attempts, moved, more, waits, bound,
-- left}. attempts and moved are false if no job of the topic has any. more is 1 if bytes ended the
-- take or jobs were given back: there is more to take. waits is 1 if the server waits now; after 0
-- it must ask again when it can start a job. bound is missing in a repeated reply, and if the topic
-- has no limits. Otherwise it says what ended the take: free, limit (of running jobs), rate, or on
-- (nothing of these). left is the time until the next start in µs, with rate. limited is 1 if
-- limits of keys are in force, and 2 if the take has parked keys because of them: then the timer
-- has to promote, so that it knows when they get turns. It is 3 if keys are parked for other
-- reasons only.
--
-- Other replies are {'empty', now, waits, limited}, {'busy', now, waits, limited} (jobs wait for an
-- idle worker), {'paused', now, until when or 0} and {'held', now, until when} (idle is unchanged),
-- {'limit', now}, {'rate', now, left}, {'gather', now, ms that it still takes, waits}, and with
-- limit 0 {'returned', now, ids}. 'ok' without IDs and with waits 0 means: ask again.
-- Cost: O(limit × log N), and no more than bytes, or one record, are read.
-- Uses: now stats lease paused place rouse line_up key_rule holder order
local ready, handoff, pool, bucket = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local leases, dead, attempts, moved = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local meta, receipt, stats, sizes, idle = KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local turn, lane, keyed, rules, held = KEYS[14], KEYS[15], KEYS[16], KEYS[17], KEYS[18]
local parked, holders, rates, blockers = KEYS[19], KEYS[20], KEYS[21], KEYS[22]
local number, since, limit, bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local lease, free, place = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local name, listed = ARGV[8], ARGV[9]
local enough, within = tonumber(ARGV[10]), tonumber(ARGV[11])
local groups, batch = tonumber(ARGV[12]), tonumber(ARGV[13])

-- answer adds the known data of the jobs to their records. With pcall: missing data must not cost
-- the jobs.
local function answer(lease_end, ids, records, more, waits, bound, left, limited)
  local tried, due = false, false
  if #ids > 0 and redis.call('EXISTS', attempts, moved) > 0 then
    tried = redis.pcall('HMGET', attempts, unpack(ids))
    due = redis.pcall('HMGET', moved, unpack(ids))
  end
  tried, due = tried and not tried.err and tried, due and not due.err and due
  if limited then -- a nil would end the reply
    bound, left = bound or false, left or false
  end
  return {'ok', now, lease_end, ids, records, tried, due, more and 1 or 0, waits, bound, left,
    limited}
end

-- note writes the receipt. With pcall: at worst the jobs wait until their leases are over.
local function note(lease_end, more, ids)
  redis.pcall('DEL', receipt)
  redis.pcall('RPUSH', receipt, number, lease_end, more and 1 or 0, unpack(ids))
  redis.pcall('PEXPIRE', receipt, lease)
end

-- known returns 1 if the server is in idle, without a change.
local function known()
  local since_when = name ~= '' and redis.pcall('ZSCORE', idle, name)
  return type(since_when) == 'string' and 1 or 0
end

-- The end contains the microseconds of the present. So no two leases of a job end at the same time,
-- and a fence identifies one of them.
local lease_end = string.format('%.0f.%03d', now + lease, time[2] % 1000)

local last = tonumber(redis.call('LINDEX', receipt, 0) or nil)
if last and last > tonumber(number) then
  return {'empty', now, 0} -- abandoned by the server, and late: see prelude/receipt.lua
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
    redis.call('ZREM', leases, '') -- after a deletion, the script can write at maxmemory
    if #back > 0 then
      local plain = back
      if redis.call('EXISTS', keyed) == 1 then
        local laned
        laned, plain = line_up(turn, lane, keyed, back)
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
    return answer(old_end, ids, redis.call('HMGET', pool, unpack(ids)), more, known())
  elseif twice then
    return {'empty', now, known()}
  end
end
if since < tonumber(number) then
  note('0', false, {}) -- none of those takes gets anything if it comes after this one
end
if limit == 0 then
  return {'returned', now, {}}
end

-- number_of reads a field of meta. A damaged one counts as none: it must not end every take.
local function number_of(text)
  return tonumber(text or 0) or 0
end

local set = redis.call('HMGET', meta, 'paused', 'until', 'hold', 'flow', 'tat', 'promise',
  'limited', 'gather')
if paused(set) then
  return {'paused', now, tonumber(set[2] or 0)}
elseif now < number_of(set[3]) then
  return {'held', now, tonumber(set[3])}
end

-- bound is what limits the take, and at the tat. With limits, the number of jobs that one take may
-- lease is known before it looks at any.
local bound, at, emit, burst = nil, nil, 0, 0
local us = time[1] * 1000000 + time[2]

-- left returns the time until the next start.
local function left()
  return math.max(0, at - (burst - 1) * emit - us)
end

-- The limits of each key, unless it has its own.
local key_running, key_emit, key_burst = flow_of(set[4])
local by_key = key_running > 0 or key_emit > 0 or number_of(set[7]) > 0
local limited = by_key and 1 or nil -- in the reply
local ordered, halts = false, false
if by_key then
  ordered, halts = order_of(set[4])
end

if set[4] or by_key then
  local function cap(most, why)
    if most < limit then
      limit, bound = most, why
    end
  end
  local running, period, size = string.match(set[4] or '', '^(%d+) (%d+) (%d+) %d+ %d+ %d+')
  running, emit, burst = number_of(running), number_of(period), math.max(1, number_of(size))
  if running > 0 or emit > 0 or by_key then
    bound = 'on'
    cap(free, 'free')
  end
  if running > 0 then
    cap(running - math.max(0, redis.call('ZCARD', leases) - 1), 'limit') -- without the anchor
  end
  if emit > 0 then
    local tat = number_of(set[5])
    if tat > us + burst * emit then -- the clock was set back, or the limits have changed
      tat = us + burst * emit
      redis.pcall('HSET', meta, 'tat', string.format('%.0f', tat)) -- so that this stall ends
    end
    at = math.max(us, tat)
    cap(math.floor((us + burst * emit - at) / emit), 'rate')
  end
  if limit <= 0 and redis.call('EXISTS', ready, handoff, turn) > 0 then
    if listed == '1' then
      redis.pcall('ZREM', idle, name)
    end
    if bound == 'free' then
      return {'busy', now, 0, limited}
    elseif bound == 'limit' then
      return {'limit', now}
    end
    -- Every server that is refused gets another start. One that is not used is lost.
    local start = us + left()
    local promise = math.max(start, number_of(set[6]) + emit)
    if promise - us > 1000000 then
      promise = start
    end
    redis.pcall('HSET', meta, 'promise', string.format('%.0f', promise))
    return {'rate', now, math.ceil(promise - us)}
  end
end

local kept_back = false -- jobs stay because they are gathered for another batch
if enough > 0 and groups == 0 then
  local ready_jobs = redis.call('LLEN', ready) + redis.call('LLEN', handoff)
  if ready_jobs > 0 then -- without the wake-ups
    ready_jobs = ready_jobs - #redis.call('LPOS', ready, '', 'COUNT', 0, 'MAXLEN', 1000)
      - #redis.call('LPOS', handoff, '', 'COUNT', 0, 'MAXLEN', 1000)
  end
  ready_jobs = ready_jobs + redis.call('ZCARD', lane)
  local ending = number_of(set[8])
  local over = ending > 0 and ending <= now
  if ready_jobs > 0 and ready_jobs < enough then
    if ending == 0 or ending > now + within then
      ending = now + within
      redis.call('HDEL', meta, 'gather') -- after a deletion, the script can write at maxmemory
      redis.call('HSET', meta, 'gather', string.format('%.0f', ending))
    end
    if ending > now then
      local put = name ~= '' and redis.pcall('ZADD', idle, now, name)
      return {'gather', now, ending - now, type(put) == 'number' and 1 or 0}
    end
  end
  if ending > 0 then
    redis.call('HDEL', meta, 'gather')
  end
  local rest = ready_jobs % batch
  if not over and rest > 0 and rest < enough and ready_jobs - rest < limit then
    limit, kept_back, bound = ready_jobs - rest, true, bound and 'on'
  end
end

-- scores looks up IDs in a zset. Most topics have no dead jobs, and often the bucket is empty too:
-- that costs nothing.
local function scores(zset, waiting)
  return redis.call('EXISTS', zset) == 1 and redis.call('ZMSCORE', zset, unpack(waiting)) or {}
end

-- Nearly always no lease has that end yet. Then this call has leased all jobs that have it
-- afterwards, and no ID needs a look-up beforehand.
local alone = limit >= 8 and redis.call('ZCOUNT', leases, lease_end, lease_end) == 0

-- own keeps those of the first n IDs that this call has leased, each once. The others already had a
-- lease, and still have it.
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

-- wanted reads the records of those of the first n IDs that count, one after the other up to bytes.
-- It returns the number of IDs covered.
local read = 0 -- bytes of the records read for the reply
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

local ids, records, seen = {}, {}, {}

-- taken reports whether this call has taken a job of that ID already.
local function taken(id)
  for _, other in ipairs(ids) do
    if other == id then
      return true
    end
  end
  return false
end

local got, looked, busy, more = 0, 0, false, false
local dry = limit <= 0 -- both lists are known to be empty

-- stray puts a ready job that has a key into its lane, from where an older release has put it. A
-- job without a key goes to ready: an older release has stored it under the ID of one with a key.
-- It returns the key, or nil.
local refilled = false -- whether it has put a job into ready
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

-- census counts the running jobs of a key, and drops the entries of those that have ended. It
-- returns when the first of their leases ends too.
local function census(key)
  local from, to = '[' .. lane_of(key), '(' .. lane_end(key)
  local list, jobs = redis.call('ZRANGEBYLEX', holders, from, to, 'LIMIT', 0, 1000), {}
  for i, entry in ipairs(list) do
    jobs[i] = held_by(key, entry)
  end
  local ends = redis.call('ZMSCORE', leases, unpack(jobs))
  local spots = redis.call('HMGET', keyed, unpack(jobs))
  local n, first, stale = 0, nil, {}
  for i, entry in ipairs(list) do
    if ends[i] and spots[i] and key_of(spots[i]) == key then
      n = n + 1
      first = math.min(first or math.huge, tonumber(ends[i]))
    else
      stale[#stale + 1] = entry
    end
  end
  if #stale > 0 then
    redis.call('ZREM', holders, unpack(stale))
  end
  looked = looked + #list
  return n, first
end

-- blocked returns until when a key waits for a job that comes first and is not ready, or nil. It
-- drops entries of blockers that do not count.
local function blocked(key)
  local from, to = '[' .. lane_of(key), '(' .. lane_end(key)
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
    r.till = math.ceil((r.tat - (size - 1) * period) / 1000)
  end
  if running > 0 and r.room > 0 then
    local n = redis.call('ZLEXCOUNT', holders, '[' .. lane_of(key), '(' .. lane_end(key))
    if n >= running then
      local first
      n, first = census(key)
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

-- complete returns nil if the jobs of a key make a batch, and otherwise when they do.
local function complete(key)
  local from, to = '[' .. lane_of(key), '(' .. lane_end(key)
  local entry = redis.call('ZRANGEBYLEX', lane, from, to, 'LIMIT', 0, 1)[1]
  if not entry or redis.call('ZLEXCOUNT', lane, from, to) >= enough then
    return nil
  end
  local _, spot = key_of(entry)
  local start = tonumber(string.sub(spot, -16, -9), 16) or 2147483648
  local till = (tonumber(string.sub(spot, -37, -27), 16) or 0) + start - 2147483648 + within
  return till > now and till or nil
end

-- heads returns the first keys in turn that are not held and whose limits are not reached, at most
-- want, with their passes, their weights and, if limits of keys are in force, their rations. The
-- turns of the others end here: a job that became ready has given them one.
local function heads(want)
  local names, passes, weights, rations, stopped
  local judged = {}
  repeat
    names, passes, weights, rations, stopped = {}, {}, {}, {}, {}
    local waits = {}
    local list, all = redis.call('ZRANGE', turn, 0, want - 1, 'WITHSCORES'), {}
    for i = 1, #list, 2 do
      all[#all + 1] = list[i]
    end
    local ends = #all > 0 and redis.call('EXISTS', held) == 1
      and redis.call('ZMSCORE', held, unpack(all)) or {}
    local ruled = #all > 0 and redis.call('EXISTS', rules) == 1
      and redis.call('HMGET', rules, unpack(all)) or {}
    for i, key in ipairs(all) do
      if looked >= 1000 then
        break -- the others keep their turns
      end
      local rule = ruled[i] or nil
      local weight, running, period, size = rule_of(rule, key_running, key_emit, key_burst)
      running = ordered and 1 or running
      local r = by_key and key ~= '' and (running > 0 or period > 0)
        and (judged[key] or ration(key, running, period, size)) or nil
      judged[key] = r
      local till = r and r.room <= 0 and r.till or groups > 0 and key ~= '' and complete(key)
      if (tonumber(ends[i] or 0) or 0) > now then
        stopped[#stopped + 1] = key
      elseif till then
        stopped[#stopped + 1] = key
        waits[#waits + 1], waits[#waits + 2] = string.format('%.0f', till), key
      else
        local n = #names + 1
        names[n], passes[n], weights[n], rations[n] = key, tonumber(list[2 * i]), weight, r or false
      end
    end
    if #waits > 0 then -- first: if parked is of a wrong type, no key loses its turn
      redis.call('ZREM', lane, '') -- after a deletion, the script can write at maxmemory
      redis.call('ZADD', parked, unpack(waits))
      limited = by_key and 2 or 3
    end
    if #stopped > 0 then
      redis.call('ZREM', turn, unpack(stopped))
      looked = looked + #stopped
    end
  until #stopped == 0 or looked >= 1000
  return names, passes, weights, rations
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
  end
  if #holding > 0 then
    redis.call('ZADD', holders, unpack(holding))
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

  -- The candidates. One more than the share of a key shows whether others follow.
  local open, plain, pass = want, 0, nil
  for i, key in ipairs(names) do
    if key == '' then
      plain, pass = math.ceil(want * weights[i] / total), passes[i]
      plain = groups > 0 and math.min(want, batch) or plain
    end
  end
  open = open - plain
  local waiting, places, owner, more_of = {}, {}, {}, {}
  for i, key in ipairs(names) do
    local share = math.min(open, groups > 0 and batch or math.ceil(want * weights[i] / total))
    share = math.min(share, rations[i] and rations[i].room or share)
    if key ~= '' and share > 0 then
      local from, to = '[' .. lane_of(key), '(' .. lane_end(key)
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

  local n, found, taken_of, gone = #waiting, {}, {}, {}
  local grants, granted, strays = {'NX', '+inf', anchor()}, 3, {}
  local holding = {} -- the new entries of holders
  if n > 0 then
    local delayed, buried = scores(bucket, waiting), scores(dead, waiting)
    local leased = scores(leases, waiting)
    if n > 1 and bounded(n) then
      n = wanted(waiting, n, want - plain, found, delayed, buried, leased)
    else
      found = redis.call('HMGET', pool, unpack(waiting))
    end
    for i = 1, n do
      local id, record, key = waiting[i], found[i], owner[i]
      local apart = not record or delayed[i] or buried[i] or leased[i] or seen[id]
      if not apart and of_record(places[i], record) then
        busy = got >= free and string.byte(record, 10) % 2 == 1
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
    if at then
      redis.call('HSET', meta, 'tat', string.format('%.0f', at + got * emit))
    end
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
  local later, over = {}, {}
  for i, key in ipairs(names) do
    if more_of[i] ~= nil then
      if more_of[i] then
        if taken_of[i] then
          local m = #later + 1
          later[m] = string.format('%.17g', passes[i] + taken_of[i] / weights[i])
          later[m + 1] = key
        end
      elseif not stays[key] then
        over[#over + 1] = key
      end
    end
  end
  if #later > 0 then
    redis.call('ZADD', turn, unpack(later))
  end
  if #over > 0 then
    redis.call('ZREM', turn, unpack(over))
  end
  return plain, pass
end

local plain, pass, laned
local most_jobs = limit -- of the jobs without a key, too
if limit > 0 and redis.call('EXISTS', turn, held, parked) > 0 then
  limit = math.min(limit, 250)
  groups = groups > 0 and math.max(1, math.min(groups, math.floor(limit / batch))) or 0
  if redis.call('EXISTS', ready, handoff) > 0 then
    redis.call('ZREM', lane, '') -- after a deletion, the script can write at maxmemory
    offer(turn, {''})
  end
  plain, pass = serve()
  laned, most_jobs = got, groups > 0 and got + plain or limit
  dry = got == limit or plain == 0 and redis.call('EXISTS', ready, handoff) == 0
end
while got < most_jobs and looked < 1000 and not busy and not more and not dry do
  -- Everything is read before anything is written, so a key of a wrong type costs no ID. Many more
  -- leftovers can follow the first ones.
  local most = looked == 0 and most_jobs or math.min(math.max(most_jobs - got, 64), 1000 - looked)
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
    dry = true
    break
  end
  local delayed, buried = scores(bucket, waiting), scores(dead, waiting)
  local leased = not alone and scores(leases, waiting)
  local found, all = {}, n
  if (n > 1 or read > 0) and bounded(n) then
    n = wanted(waiting, n, most_jobs - got, found, delayed, buried, leased)
  else
    found = redis.call('HMGET', pool, unpack(waiting))
  end
  local used, before = 0, got
  local grants, granted = {'NX', '+inf', anchor()}, 3
  for i = 1, n do
    local id, record = waiting[i], found[i]
    if got == most_jobs then
      break
    end
    local new = record and not delayed[i] and not buried[i]
      and (alone or not leased[i] and not seen[id])
    if new and laned and has_key(record) then
      if not (alone and redis.call('ZSCORE', leases, id)) then
        stray(id, record)
      end
    elseif new then
      busy = got >= free and string.byte(record, 10) % 2 == 1
        and not (alone and (redis.call('ZSCORE', leases, id) or taken(id)))
      if busy then
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
  more = n < all and got < most_jobs and not busy
  dry = all < most and used == all
  looked = looked + used
  if handed > 0 then
    redis.call('LTRIM', handoff, math.min(used, handed), -1)
  end
  if used > handed then
    redis.call('LTRIM', ready, used - handed, -1)
  end
  if got > before then -- after a deletion, so the script can write at maxmemory
    if at then -- first: if the script ended here, a start would be lost and not made twice
      redis.call('HSET', meta, 'tat', string.format('%.0f', at + got * emit))
    end
    redis.call('ZADD', leases, unpack(grants))
    if alone and redis.call('ZCOUNT', leases, lease_end, lease_end) < got then
      got = own(ids, records, got)
      -- One leftover can precede many: from here on each ID is looked up before it is leased.
      alone, busy = false, false
    end
  end
end

-- The empty key has had its turn. Without other keys there are no turns.
if laned then
  local others = redis.call('ZCARD', turn)
  pass = pass or tonumber(redis.call('ZSCORE', turn, '') or nil)
  if pass then
    others = others - 1
    if dry and got < limit or others == 0 then
      redis.call('ZREM', turn, '')
    elseif got > laned then
      redis.call('ZADD', turn, string.format('%.17g', pass + got - laned), '')
    end
  end
  -- The others get what it has left.
  if others > 0 and got < limit and not busy and not more and groups == 0 then
    serve()
    others = redis.call('ZCARD', turn)
  end
  -- A server that is about to block must not do so while keys have jobs, so this wakes it.
  if others > 0 and redis.call('EXISTS', ready) == 0 then
    redis.pcall('RPUSH', ready, '')
  end
  more = more or others > 0 and not busy
  dry = dry and others == 0 and got < limit and not refilled
end
more = more or kept_back and got > 0

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
