-- check: scans a slice of one key of a topic for inconsistencies that no transition produces. With
-- repair, it removes them.
--
-- KEYS[1]   pool       hash, job ID to record
-- KEYS[2]   bucket     zset, job ID scored by due time (Unix ms)
-- KEYS[3]   leases     zset, job ID scored by the end of its lease
-- KEYS[4]   dead       zset, job ID scored by the time of burial
-- KEYS[5]   attempts   hash, job ID to number of finished attempts
-- KEYS[6]   errors     hash, job ID to its error log
-- KEYS[7]   moved      hash, job ID to its current due time, if it differs from the record's
-- KEYS[8]   done       zset, job ID scored by the time it is kept until
-- KEYS[9]   results    hash, job ID to its kept run and record
-- KEYS[10]  schedules  hash, schedule to definition
-- KEYS[11]  slots      zset, schedule scored by its next slot (Unix ms)
-- KEYS[12]  waiting    zset, schedule scored by the slot that waits for its last run to finish
-- KEYS[13]  fired      hash, schedule to the state of its slots
-- KEYS[14]  runs       hash, schedule to the history of its runs
-- KEYS[15]  ready      list of job IDs, next one at the head
-- KEYS[16]  handoff    list of job IDs on the way from a server's wait to its take
-- KEYS[17]  stats      hash, counter to number
-- KEYS[18]  sizes      hash, the size of the largest record
-- KEYS[19]  idle       zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[20]  turn       zset, key of waiting jobs scored by its pass
-- KEYS[21]  lane       zset, places of waiting jobs that have a key, each with the job ID
-- KEYS[22]  keyed      hash, job ID to its place in a lane, for jobs that have a key
-- KEYS[23]  rules      hash, key to what is set for it
-- KEYS[24]  held       zset, key scored by the end of its hold (Unix ms)
-- KEYS[25]  minutes    hash, minute modulo 360 to the numbers of that minute
-- KEYS[26]  hours      hash, hour modulo 720 to the numbers of that hour
-- KEYS[27]  parked     zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[28]  holders    zset, key and ID of every running job whose key has a limit of running jobs
-- KEYS[29]  rates      zset, key scored by its tat (Unix µs)
-- KEYS[30]  blockers   zset, place and ID of every job that its key waits for (see limits)
-- KEYS[31]  meta       hash, settings of the topic made by operators
-- KEYS[32]  tombs      zset, closed job ID scored by when it is free again (Unix ms)
-- KEYS[33]  next       hash, running job ID to the successor that it will have
-- KEYS[34]  notes      hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[35]  parcels    zset, what is on the way to other topics, by target and number
-- KEYS[36]  flows      hash, ID of a last step to how far its flow has come
-- KEYS[37]  steps      hash, the steps of flows
-- KEYS[38]  parts      hash, the map of the partitions of the topic
-- ARGV[1]   part       a key to scan, by its name here: one of the first sixteen, turn, lane,
--                      keyed, rules, held, parked, holders, rates, blockers, all:next, all:notes or
--                      all:flows. Or all, for checks that need no scan
-- ARGV[2]   cursor     where the slice begins, 0 for the beginning. For a list: how many IDs to
--                      skip at its tail
-- ARGV[3]   limit      about how much work to do: a simple command counts as 1
-- ARGV[4]   most       the call reads no further entries after that many bytes
-- ARGV[5]   repair     1 to repair, 0 to report only
--
-- The findings are words. Files of the prelude say what most of them mean: check_jobs, check_lanes,
-- check_limits, check_schedules, check_notes and check_flows. lone_anchor is the anchor left alone
-- in leases, and wrong_type is about a key whose full name it has; the caller leaves out what needs
-- that key.
-- With repair, a lost size of the largest record and a lost number of keys with limits are noted
-- again, which is no finding. Safe to send twice.
-- Returns {'ok', now, cursor, looked, keys, ids, whats, repaired, sizes, nowhere}. cursor is 0 at
-- the end. Four lists describe the findings; repaired is 1 or 0. With all, sizes holds the sizes of
-- turn, keyed, lane, the first fourteen keys, rules, held, parked, holders, rates, blockers, next,
-- notes, flows, ready and handoff, -1 for a wrong type. nowhere lists the IDs with a record that
-- are in neither bucket nor leases nor dead, and whose place is not in lane, so they should be in
-- ready.
-- For a list, ids holds pages of IDs from its tail to its head, and sizes only its length. (It is a
-- script because go-redis can send a plain LRANGE to a replica that lags.)
-- Cost: O(limit × log N).
-- Uses: now stats sizes lease measure schedule place rouse key_rule holder free_keys reseat order
-- Uses: block unblock close_books successor parcels
local pool, bucket, leases, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local attempts, errors, moved = KEYS[5], KEYS[6], KEYS[7]
local done, results, schedules, slots, waiting = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local fired, runs, ready, handoff = KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local stats, sizes, idle = KEYS[17], KEYS[18], KEYS[19]
local turn, lane, keyed, rules, held = KEYS[20], KEYS[21], KEYS[22], KEYS[23], KEYS[24]
local minutes, hours = KEYS[25], KEYS[26]
local parked, holders, rates = KEYS[27], KEYS[28], KEYS[29]
local blockers, meta, tombs, next = KEYS[30], KEYS[31], KEYS[32], KEYS[33]
local notes, parcels, flows, steps, parts = KEYS[34], KEYS[35], KEYS[36], KEYS[37], KEYS[38]
local part, cursor, repair = ARGV[1], ARGV[2], ARGV[5]
local limit, most = tonumber(ARGV[3]), tonumber(ARGV[4])

local keys, ids, whats, repaired, mended = {}, {}, {}, {}, 0

local work = 0 -- what the call has done

-- found notes one finding, and reports whether to repair it.
local function found(key, id, what, can)
  local mend = can and repair == '1'
  local n = #keys + 1
  keys[n], ids[n], whats[n], repaired[n] = key, id, what, mend and 1 or 0
  mended = mended + repaired[n]
  work = work + 8 * repaired[n]
  return mend
end

-- scan reads a slice of a key in steps, because Redis cannot limit the bytes of a scan. It calls
-- each for every page of entries. step is the most entries that it reads before it checks their
-- size, and cost the work for each of them if nothing is wrong. Redis returns a small key as a
-- whole.
local looked, entries, read = 0, {}, 0 -- read: bytes that each has read beside the entries
local function scan(command, key, step, cost, each)
  local bytes = 0
  repeat
    local some = math.min(step, math.ceil((limit - work) / cost))
    local page = redis.call(command, key, cursor, 'COUNT', some)
    cursor, entries = page[1], page[2]
    looked, work = looked + #entries / 2, work + 1 + cost * #entries / 2
    for i = 2, #entries, 2 do
      bytes = bytes + #entries[i]
    end
    each()
  until cursor == '0' or work >= limit or bytes + read >= most
end

-- walk reads pages of IDs of a list, from its tail to its head. Four IDs are as much work as a
-- command.
local function walk(list)
  local passed, bytes, length = tonumber(cursor), 0, redis.call('LLEN', list)
  repeat
    local page = redis.call('LRANGE', list, -passed - 1000, -passed - 1)
    ids[#ids + 1] = page
    bytes, passed, looked = bytes + #table.concat(page), passed + #page, looked + #page
  until passed >= length or looked >= 4 * limit or bytes >= most
  cursor = passed < length and tostring(passed) or '0'
  return {length}
end

-- endless finds tombs with an impossible time, from the last one: at most 1,000. That of the empty
-- ID closes the topic.
local function endless()
  for _, id in ipairs(redis.call('ZRANGE', tombs, '+inf', '(9999999999999', 'BYSCORE', 'REV',
    'LIMIT', 0, 1000)) do
    if id ~= '' and found('all:tombs', id, 'bad_time', true) then
      redis.call('ZREM', tombs, id)
    end
  end
end

-- late_parcels finds targets whose first parcel is more than a minute old, and damaged parcels that
-- it meets: at most 20 of both.
local function late_parcels()
  local from = '-'
  for _ = 1, 20 do
    local one = redis.call('ZRANGEBYLEX', parcels, from, '+', 'LIMIT', 0, 1)[1]
    if not one then
      return
    end
    local target, since = parcel_of(one)
    if not target then
      found('all:parcels', string.sub(one, 1, 64), 'unreadable', false)
    elseif since < now - 60000 then
      found('all:parcels', target, 'undelivered', false)
    end
    from = target and '(' .. parcel_front(target) .. 'g' or '(' .. one
  end
end

-- all makes the checks that need no scan, and returns the sizes of the keys.
local function all()
  local lengths = {}
  for i, one in ipairs({
    {'ZCARD', turn}, {'HLEN', keyed}, {'ZCARD', lane},
    {'HLEN', pool}, {'ZCARD', bucket}, {'ZCARD', leases}, {'ZCARD', dead},
    {'HLEN', attempts}, {'HLEN', errors}, {'HLEN', moved}, {'ZCARD', done}, {'HLEN', results},
    {'HLEN', schedules}, {'ZCARD', slots}, {'ZCARD', waiting}, {'HLEN', fired}, {'HLEN', runs},
    {'HLEN', rules}, {'ZCARD', held}, {'ZCARD', parked}, {'ZCARD', holders}, {'ZCARD', rates},
    {'ZCARD', blockers}, {'HLEN', next}, {'HLEN', notes}, {'HLEN', flows},
    {'LLEN', ready}, {'LLEN', handoff},
  }) do
    lengths[i] = measure(one[1], one[2])
  end
  measure('HLEN', stats)
  measure('HLEN', sizes)
  measure('HLEN', meta)
  measure('ZCARD', idle)
  measure('HLEN', steps)
  measure('HLEN', parts)
  measure('HLEN', minutes)
  measure('HLEN', hours)
  if measure('ZCARD', tombs) > 0 then
    endless()
  end
  if measure('ZCARD', parcels) > 0 then
    late_parcels()
  end
  for _, key in ipairs(wrong) do
    found(key, '', 'wrong_type', false)
  end
  local left = lengths[6] == 1 and redis.call('ZSCORE', leases, anchor())
  if left and found('leases', '', 'lone_anchor', true) then
    redis.call('DEL', leases)
  end
  return lengths
end

-- Uses: check_jobs check_lanes check_limits check_schedules steps tidy stray check_notes flow
-- Uses: check_flows

local lengths = {}
if part == 'all' then
  lengths = all()
  note_limits(false)
elseif part == 'ready' or part == 'handoff' then
  lengths = walk(part == 'ready' and ready or handoff)
else
  -- How to scan a key, how many entries to read before a check of their size, and the work for
  -- each of them. Entries with payloads are read one by one if the largest size is unknown, and so
  -- are error logs.
  local known = tonumber(redis.pcall('HGET', sizes, 'largest') or 2000) or 2000
  local few = math.max(1, math.min(50, math.floor(most / known)))
  local way = ({
    pool = {'HSCAN', pool, few, 3, records},
    bucket = {'ZSCAN', bucket, 50, 2, function() places(bucket) end},
    leases = {'ZSCAN', leases, 50, 2, function() places(leases) end},
    dead = {'ZSCAN', dead, 50, 2, function() places(dead) end},
    attempts = {'HSCAN', attempts, 50, 3, function() books(attempts, '^(%d+)$') end},
    errors = {'HSCAN', errors, 1, 3, function() books(errors) end}, -- any bytes are readable
    moved = {'HSCAN', moved, 50, 3, function() books(moved, '^(%d+) %a%S* (%d+) (%d+) [01]$') end},
    done = {'ZSCAN', done, 50, 2, kept},
    results = {'HSCAN', results, 1, 3, outcomes},
    schedules = {'HSCAN', schedules, 1, 16, definitions},
    slots = {'ZSCAN', slots, 50, 2, function() rest(slots, 'ZREM') end},
    waiting = {'ZSCAN', waiting, 50, 2, function() rest(waiting, 'ZREM') end},
    fired = {'HSCAN', fired, 50, 2, function() rest(fired, 'HDEL') end},
    runs = {'HSCAN', runs, 50, 2, function() rest(runs, 'HDEL') end},
    turn = {'ZSCAN', turn, 50, 1, passes},
    lane = {'ZSCAN', lane, few, 6, lanes},
    keyed = {'HSCAN', keyed, 50, 3, seats},
    rules = {'HSCAN', rules, 50, 2, settings},
    held = {'ZSCAN', held, 50, 1, function() holds(held) end},
    parked = {'ZSCAN', parked, 50, 8, function() holds(parked) end},
    holders = {'ZSCAN', holders, 50, 5, running},
    rates = {'ZSCAN', rates, 50, 1, tats},
    blockers = {'ZSCAN', blockers, 50, 5, blocks},
    ['all:next'] = {'HSCAN', next, few, 3, successors},
    ['all:notes'] = {'HSCAN', notes, 10, 4, noted},
    ['all:flows'] = {'HSCAN', flows, 50, 2, begun},
  })[part]
  scan(unpack(way))
end
count(stats, 'mended', mended)
return {'ok', now, cursor, looked, keys, ids, whats, repaired, lengths, nowhere}
