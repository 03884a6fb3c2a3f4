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
-- ARGV[1]   part       a key to scan, by its name here: one of the first sixteen, turn, lane,
--                      keyed, rules, held, parked, holders, rates or blockers. Or all, for
--                      checks that need no scan
-- ARGV[2]   cursor     where the slice begins, 0 for the beginning. For a list: how many IDs to
--                      skip at its tail
-- ARGV[3]   limit      about how many entries to read
-- ARGV[4]   most       the call reads no further entries after that many bytes
-- ARGV[5]   repair     1 to repair, 0 to report only
--
-- Findings about jobs: no_record (an ID without one), two_places, orphan (books of no job),
-- unreadable (malformed books), bad_time (an impossible time), lone_anchor (left alone in leases),
-- wrong_type (the key is the full name; the caller leaves out the parts that need it). The books of
-- a job are its entries in attempts, errors and moved. Findings about lanes: no_record, two_places
-- and orphan (of a former job with that ID) of an entry, no_lane (a job with a key whose place is
-- not in keyed), no_turn (a key whose jobs wait, and which is in neither turn nor held nor parked;
-- ID is the key), no_block (a job that its key must wait for is not in blockers), unreadable (a
-- malformed entry, pass, rule, hold or tat). An orphan in blockers is of a job that is neither
-- delayed nor dead, or has another place. Findings about schedules, with the name as ID: no_slot
-- (neither paused nor ended, and in neither slots nor waiting), no_state, no_history, unreadable (a
-- malformed state, or one of another definition), bad_time, no_schedule (leftovers without a
-- definition). A schedule that gets a place again has the slot 0: a server computes its first slot
-- from then on.
--
-- With repair, a lost size of the largest record and a lost number of keys with limits are noted
-- again, entries in holders of jobs that are not running are removed, and keys that are parked for
-- longer than any lease and their rates say get turns. They are no finding, because unpark comes
-- after the end of a job. For an ID in leases only the books are repaired, because the job belongs
-- to its server. Safe to send twice.
-- Returns {'ok', now, cursor, looked, keys, ids, whats, repaired, sizes, nowhere}. cursor is 0 at
-- the end. Four lists describe the findings; repaired is 1 or 0. With all, sizes holds the sizes of
-- turn, keyed, lane, the first fourteen keys, rules, held, parked, holders, rates, blockers, ready
-- and handoff, -1 for a wrong type. nowhere lists the IDs with a record that are in neither bucket
-- nor leases nor dead, and whose place is not in lane, so they should be in ready. For a list, ids
-- holds pages of IDs from its tail to its head, and sizes only its length. (It is a script because
-- go-redis can send a plain LRANGE to a replica that lags.)
-- Cost: O(limit × log N).
-- Uses: now stats sizes lease measure schedule place rouse key_rule holder free_keys reseat order
-- Uses: block unblock
local pool, bucket, leases, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local attempts, errors, moved = KEYS[5], KEYS[6], KEYS[7]
local done, results, schedules, slots, waiting = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local fired, runs, ready, handoff = KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local stats, sizes, idle = KEYS[17], KEYS[18], KEYS[19]
local turn, lane, keyed, rules, held = KEYS[20], KEYS[21], KEYS[22], KEYS[23], KEYS[24]
local minutes, hours = KEYS[25], KEYS[26]
local parked, holders, rates = KEYS[27], KEYS[28], KEYS[29]
local blockers, meta = KEYS[30], KEYS[31]
local part, cursor, repair = ARGV[1], ARGV[2], ARGV[5]
local limit, most = tonumber(ARGV[3]), tonumber(ARGV[4])

local keys, ids, whats, repaired, mended = {}, {}, {}, {}, 0
local nowhere = {}

-- found notes one finding, and reports whether to repair it.
local function found(key, id, what, can)
  local mend = can and repair == '1'
  local n = #keys + 1
  keys[n], ids[n], whats[n], repaired[n] = key, id, what, mend and 1 or 0
  mended = mended + repaired[n]
  return mend
end

-- scan reads a slice of a key in steps, because Redis cannot limit the bytes of a scan. It calls
-- each for every page of entries. step is the most entries that it reads before it checks their
-- size.
local looked, entries, read = 0, {}, 0 -- read: bytes that each has read beside the entries
local function scan(command, key, step, each)
  local bytes = 0
  repeat
    local page = redis.call(command, key, cursor, 'COUNT', math.min(step, limit))
    cursor, entries = page[1], page[2]
    looked = looked + #entries / 2
    for i = 2, #entries, 2 do
      bytes = bytes + #entries[i]
    end
    each()
  until cursor == '0' or looked >= limit or bytes + read >= most
end

-- walk reads pages of IDs of a list, from its tail to its head.
local function walk(list)
  local passed, bytes, length = tonumber(cursor), 0, redis.call('LLEN', list)
  repeat
    local page = redis.call('LRANGE', list, -passed - 1000, -passed - 1)
    ids[#ids + 1] = page
    bytes, passed, looked = bytes + #table.concat(page), passed + #page, looked + #page
  until passed >= length or looked >= limit or bytes >= most
  cursor = passed < length and tostring(passed) or '0'
  return {length}
end

local function all()
  local lengths = {}
  for i, one in ipairs({
    {'ZCARD', turn}, {'HLEN', keyed}, {'ZCARD', lane},
    {'HLEN', pool}, {'ZCARD', bucket}, {'ZCARD', leases}, {'ZCARD', dead},
    {'HLEN', attempts}, {'HLEN', errors}, {'HLEN', moved}, {'ZCARD', done}, {'HLEN', results},
    {'HLEN', schedules}, {'ZCARD', slots}, {'ZCARD', waiting}, {'HLEN', fired}, {'HLEN', runs},
    {'HLEN', rules}, {'ZCARD', held}, {'ZCARD', parked}, {'ZCARD', holders}, {'ZCARD', rates},
    {'ZCARD', blockers},
    {'LLEN', ready}, {'LLEN', handoff},
  }) do
    lengths[i] = measure(one[1], one[2])
  end
  measure('HLEN', stats)
  measure('HLEN', sizes)
  measure('HLEN', meta)
  measure('ZCARD', idle)
  measure('HLEN', minutes)
  measure('HLEN', hours)
  for _, key in ipairs(wrong) do
    found(key, '', 'wrong_type', false)
  end
  local left = lengths[6] == 1 and redis.call('ZSCORE', leases, anchor())
  if left and found('leases', '', 'lone_anchor', true) then
    redis.call('DEL', leases)
  end
  return lengths
end

-- timed finds an impossible time: possible ones have at most 13 digits. The caller determines the
-- due time of a job in the bucket.
local function timed(zset, id, score)
  local beyond = (tonumber(score) or math.huge) > 9999999999999
  if beyond and found(part, id, 'bad_time', zset ~= bucket) then
    redis.call('ZREM', zset, '') -- after a deletion, the script can write at maxmemory
    redis.call('ZADD', zset, now, id)
  end
end

-- enqueued returns when the record of a job was written.
local function enqueued(record)
  return tonumber(string.sub(record, 13, 25)) or 0
end

-- strip removes the leftovers of a former job with the same ID.
local function strip(id)
  redis.call('ZREM', dead, id)
  redis.pcall('HDEL', attempts, id)
  redis.pcall('HDEL', errors, id)
  redis.pcall('HDEL', moved, id)
end

-- relate checks the place of a job that does not wait. due is false for one that is dead and has
-- none. delayed is true for one in bucket alone.
local ordered -- nil: not known
local function relate(id, record, place, due, delayed)
  local has = has_key(record)
  if place and not has and found('keyed', id, 'orphan', true) then
    redis.call('ZREM', lane, place .. id)
    redis.call('HDEL', keyed, id)
  elseif has and due and not (place and of_record(place, record))
    and found('keyed', id, 'no_lane', true) then
    redis.call('HDEL', keyed, '') -- after a deletion, the script can write at maxmemory
    redis.call('HSET', keyed, id, place_of(record, due, redis.call('HINCRBY', sizes, 'number', 1)))
  elseif has and delayed and place and of_record(place, record) and is_foremost(place) then
    if ordered == nil then
      ordered = order_of(redis.pcall('HGET', meta, 'flow'))
    end
    local there = not ordered or redis.call('ZSCORE', blockers, place .. id)
    if not there and found('blockers', id, 'no_block', true) then
      redis.call('ZREM', blockers, '') -- after a deletion, the script can write at maxmemory
      block(blockers, {id}, {place})
    end
  end
end

local function records()
  local largest, laned = 0, redis.call('EXISTS', keyed) == 1
  for i = 2, #entries, 2 do
    largest = math.max(largest, #entries[i])
  end
  if repair == '1' then
    sized(sizes, largest)
  end
  for first = 1, #entries, 2000 do
    local some, written = {}, {}
    for i = first, math.min(first + 1999, #entries), 2 do
      some[#some + 1] = entries[i]
      written[#some] = entries[i + 1]
    end
    local delayed = redis.call('ZMSCORE', bucket, unpack(some))
    local leased = redis.call('ZMSCORE', leases, unpack(some))
    local buried = redis.call('ZMSCORE', dead, unpack(some))
    local placed = laned and redis.call('HMGET', keyed, unpack(some))
    for i, id in ipairs(some) do
      local place = placed and placed[i]
      if not delayed[i] and not leased[i] and not buried[i] then
        if not place or not redis.call('ZSCORE', lane, place .. id)
          or not of_record(place, written[i]) then
          nowhere[#nowhere + 1] = id
        end
      elseif leased[i] and (delayed[i] or buried[i]) then
        found('leases', id, 'two_places', false)
      elseif delayed[i] and buried[i] and enqueued(written[i]) > tonumber(buried[i]) then
        if found('dead', id, 'two_places', true) then
          strip(id) -- of a former job with this ID, whose record was lost
        end
      elseif delayed[i] and buried[i] and found('bucket', id, 'two_places', true) then
        redis.call('ZREM', bucket, id)
      end
      relate(id, written[i], place,
        delayed[i] or leased[i] and now or buried[i] and place and now,
        delayed[i] and not leased[i])
    end
  end
end

local function places(zset)
  local no_job = anchor()
  for i = 1, #entries, 2 do
    local id = entries[i]
    local gone = id ~= no_job and redis.call('HEXISTS', pool, id) == 0
    if gone and found(part, id, 'no_record', zset ~= leases) then
      redis.call('ZREM', zset, id)
    elseif id ~= no_job and (not gone or zset == leases) then
      timed(zset, id, entries[i + 1])
    end
  end
end

-- books checks entries of one to five words, whose numbers have at most 13 digits.
local function books(hash, form)
  for i = 1, #entries, 2 do
    local id = entries[i]
    local what
    if redis.call('HEXISTS', pool, id) == 0 then
      what = not redis.call('ZSCORE', leases, id) and 'orphan'
    elseif form then
      local numbers = {string.match(entries[i + 1], form)}
      what = not numbers[1] and 'unreadable'
      for _, number in ipairs(numbers) do
        what = #number > 13 and 'unreadable' or what
      end
    end
    if what and found(part, id, what, true) then
      redis.call('HDEL', hash, id)
    end
  end
end

local function kept()
  for i = 1, #entries, 2 do
    if redis.call('HEXISTS', results, entries[i]) == 1 then
      timed(done, entries[i], entries[i + 1])
    elseif found(part, entries[i], 'no_record', true) then
      redis.call('ZREM', done, entries[i])
    end
  end
end

local function outcomes()
  for i = 1, #entries, 2 do
    if not redis.call('ZSCORE', done, entries[i]) and found(part, entries[i], 'orphan', true) then
      redis.call('HDEL', results, entries[i])
    end
  end
end

-- passes finds passes that no take can have written.
local function passes()
  for i = 1, #entries, 2 do
    local pass = tonumber(entries[i + 1])
    local readable = pass and math.abs(pass) <= 9007199254740992
    if not readable and found(part, entries[i], 'unreadable', true) then
      redis.call('ZREM', turn, entries[i]) -- the scan of lane adds it again
    end
  end
end

-- notes finds places of no job. Whether a place is that of the present job is checked with the
-- records.
local function notes()
  for i = 1, #entries, 2 do
    local id, place = entries[i], entries[i + 1]
    local what = not key_of(place) and 'unreadable'
    if redis.call('HEXISTS', pool, id) == 0 then
      what = not redis.call('ZSCORE', leases, id) and 'orphan'
    end
    if what and found(part, id, what, true) then
      redis.call('ZREM', lane, place .. id)
      redis.call('HDEL', keyed, id)
    end
  end
end

-- unlaned returns what is wrong with an entry of lane: a finding and the key that it is about.
local function unlaned(place, id)
  local noted = redis.call('HGET', keyed, id)
  if noted == place and redis.call('HEXISTS', pool, id) == 1 then
    return nil
  end
  local record = redis.call('HGET', pool, id)
  read = read + #(record or '')
  if not record then
    return 'no_record', part
  elseif not of_record(place, record) then
    return 'orphan', part
  elseif noted and of_record(noted, record) and redis.call('ZSCORE', lane, noted .. id) then
    return 'two_places', part
  end
  return 'no_lane', 'keyed'
end

local function lanes()
  local placed, list, queued, asked = {}, {}, {}, {}
  for i = 1, #entries, 2 do
    local entry = entries[i]
    local key, place, id = key_of(entry)
    local what, where = 'unreadable', part
    if key then
      what, where = unlaned(place, id)
    end
    if not what or what == 'no_lane' then
      placed[#placed + 1], list[#list + 1] = entry, id
      if not asked[key] then
        asked[key] = true
        queued[#queued + 1] = key
      end
    end
    if what and found(where, id or entry, what, true) then
      if what == 'no_lane' then
        redis.call('HDEL', keyed, '') -- after a deletion, the script can write at maxmemory
        redis.call('HSET', keyed, id, place)
      else
        redis.call('ZREM', lane, entry)
      end
    end
  end
  for first = 1, #list, 1000 do
    local last = math.min(first + 999, #list)
    local delayed = redis.call('ZMSCORE', bucket, unpack(list, first, last))
    local leased = redis.call('ZMSCORE', leases, unpack(list, first, last))
    local buried = redis.call('ZMSCORE', dead, unpack(list, first, last))
    for i = first, last do
      local n = i - first + 1
      local other = delayed[n] or leased[n] or buried[n]
      if other and found(part, list[i], 'two_places', true) then
        redis.call('ZREM', lane, placed[i])
      end
    end
  end
  for first = 1, #queued, 1000 do
    local some = {unpack(queued, first, math.min(first + 999, #queued))}
    local passed = redis.call('ZMSCORE', turn, unpack(some))
    local stopped = redis.call('ZMSCORE', held, unpack(some))
    local limited = redis.call('ZMSCORE', parked, unpack(some))
    for i, key in ipairs(some) do
      local waits = passed[i] or stopped[i] or limited[i]
      if not waits and found('turn', key, 'no_turn', true) then
        offer(turn, {key})
        rouse(ready, 1)
      end
    end
  end
end

local flow_form = '^' .. string.rep(' %d+', 6) .. '$'
local function settings()
  local limited = false
  for i = 1, #entries, 2 do
    local more = string.match(entries[i + 1], '^[1-9]%d*(.*)$') -- than a weight
    local readable = #entries[i] <= 255 and (more == '' or string.match(more or '', flow_form))
    if not readable and found(part, entries[i], 'unreadable', true) then
      redis.call('HDEL', rules, entries[i])
    end
    limited = limited or readable and more ~= ''
  end
  local noted = limited and repair == '1' and redis.call('HGET', meta, 'limited')
  if limited and repair == '1' and (tonumber(noted or 0) or 0) < 1 then
    redis.call('HDEL', meta, '') -- after a deletion, the script can write at maxmemory
    redis.call('HSET', meta, 'limited', redis.call('HLEN', rules)) -- at least as many as there are
  end
end

-- excess reports whether a parked key waits longer than any lease and its rate can make it wait.
local last_end, flow
local function excess(key, till)
  if not last_end then
    last_end, flow = now, redis.call('HGET', meta, 'flow')
    local last = redis.call('ZRANGE', leases, -2, -1, 'WITHSCORES')
    for i = 1, #last, 2 do
      if last[i] ~= anchor() then
        last_end = math.max(last_end, math.ceil(last[i + 1]))
      end
    end
  end
  local _, running, emit, burst = rule_of(redis.call('HGET', rules, key), flow_of(flow))
  local tat = emit > 0 and tonumber(redis.call('ZSCORE', rates, key) or 0) or 0
  local full = math.min(math.ceil(tat / 1000), now + burst * emit / 1000 + 1)
  return till > math.max(now, full, running > 0 and last_end or 0)
end

-- unwait gives a key a turn if it has jobs.
local function unwait(key)
  if redis.call('ZLEXCOUNT', lane, lane_range(key)) > 0 then
    offer(turn, {key})
    rouse(ready, 1)
  end
end

-- holds finds keys that no call can have held or parked, and times that none can have set.
local function holds(zset)
  for i = 1, #entries, 2 do
    local key, ending = entries[i], tonumber(entries[i + 1]) or math.huge
    local readable = #key >= 1 and #key <= 255 and ending >= 0 and ending <= 9999999999999
    if not readable and found(part, key, 'unreadable', true) then
      redis.call('ZREM', zset, key)
      if #key <= 255 then
        unwait(key)
      end
    elseif readable and zset == parked and repair == '1' and excess(key, ending) then
      redis.call('ZREM', zset, key)
      unwait(key)
    end
  end
end

-- running drops the entries of jobs that are not running.
local function running()
  for i = 1, #entries, 2 do
    local size = string.byte(entries[i]) or 0
    local key = string.sub(entries[i], 2, size + 1)
    local id = held_by(key, entries[i])
    local place = redis.call('HGET', keyed, id)
    local readable = size > 0 and entries[i] == holder_of(key, id)
    local ended = not (place and key_of(place) == key and redis.call('ZSCORE', leases, id))
    if not readable and found(part, entries[i], 'unreadable', true)
      or readable and ended and repair == '1' then
      redis.call('ZREM', holders, entries[i])
    end
  end
end

-- blocks finds entries of jobs for which no key has to wait.
local function blocks()
  for i = 1, #entries, 2 do
    local key, place, id = key_of(entries[i])
    local what = not key and 'unreadable'
    local known = key and redis.call('HGET', keyed, id) == place
    if key and not (known and (redis.call('ZSCORE', bucket, id) or redis.call('ZSCORE', dead, id)
      or redis.call('ZSCORE', leases, id))) then
      what = 'orphan'
    end
    if what and found(part, id or entries[i], what, true) then
      if key then
        unblock(blockers, parked, turn, lane, ready, {id}, {place})
      else
        redis.call('ZREM', blockers, entries[i])
      end
    end
  end
end

-- tats finds keys that cannot have a rate, and times that no take can have set.
local function tats()
  for i = 1, #entries, 2 do
    local key, tat = entries[i], tonumber(entries[i + 1]) or math.huge
    local readable = #key >= 1 and #key <= 255 and tat >= 0 and tat <= 9007199254740992
    if not readable and found(part, key, 'unreadable', true) then
      redis.call('ZREM', rates, key)
    end
  end
end

-- The fields of a state. Those in always must exist, and have these values if nothing is known.
-- Those in maybe are optional; maybe holds their types.
local always = {
  made = now, changed = now, from = now, fired = 0, since = 0, skipped = 0, missed = 0,
}
local maybe = {
  slot = 'number', at = 'number', job = 'string', paused = 'number', ended = 'boolean',
  catching = 'number', trigger = 'number', more = 'number',
}

-- renew repairs a state, and reports whether it was already a valid state of this definition.
local function renew(state, definition)
  local sound = true
  local function field(name, kind, missing)
    local value = state[name]
    local fits = type(value) == kind
    if fits and kind == 'number' then
      fits = value == math.floor(value) and math.abs(value) <= 9999999999999
    end
    if not fits and (value ~= nil or missing) then
      sound = false
      state[name] = missing
    end
  end
  for name, missing in pairs(always) do
    field(name, 'number', missing)
  end
  for name, kind in pairs(maybe) do
    field(name, kind)
  end
  if state.nonce ~= hex(definition) then
    sound, state.nonce = false, hex(definition)
  end
  return sound
end

local function definitions()
  for i = 1, #entries, 2 do
    local name, definition = entries[i], entries[i + 1]
    local text = redis.call('HGET', fired, name)
    local state = state_of(text) or {}
    local what = text and 'unreadable' or 'no_state'
    local stale = not renew(state, definition) and found('fired', name, what, true)
    local placed, cleared = false, false
    for place, zset in pairs({slots = slots, waiting = waiting}) do
      local score = redis.call('ZSCORE', zset, name)
      local at = tonumber(score or nil)
      if at and at % 1 == 0 and at >= 0 and at <= 9999999999999 then
        placed = true
      elseif score and found(place, name, 'bad_time', true) then
        redis.call('ZREM', zset, name)
        cleared = true
      elseif score then
        placed = true
      end
    end
    local astray = not placed and not state.paused and not state.ended
    if astray and (cleared or found('slots', name, 'no_slot', true)) then
      -- A slot that is far in the future was fired before Redis's clock was set back.
      local last = state.slot and state.slot < now + 60000 and state.slot or 0
      stale, state.from, state.catching = true, math.max(now, last), nil
      redis.call('ZREM', slots, '') -- after a deletion, the script can write at maxmemory
      redis.call('ZADD', slots, 0, name)
    end
    if stale then
      redis.call('HDEL', fired, '')
      redis.call('HSET', fired, name, cjson.encode(state))
    end
    local log = redis.pcall('HGET', runs, name)
    local readable = type(log) == 'table' or string.match(log or '', '^%d+ %d+$')
    if not readable and found('runs', name, 'no_history', true) then
      redis.call('HDEL', runs, '')
      redis.call('HSET', runs, name, '0 0')
    end
  end
end

-- rest finds leftovers of schedules without a definition. A run in a history has a field of its
-- own, which begins with the name of its schedule.
local function rest(key, remove)
  for i = 1, #entries, 2 do
    local name = string.match(entries[i], '^(.*)\n%d+$') or entries[i]
    if redis.call('HEXISTS', schedules, name) == 0 and found(part, name, 'no_schedule', true) then
      redis.call(remove, key, entries[i])
    end
  end
end

local lengths = {}
if part == 'all' then
  lengths = all()
elseif part == 'ready' or part == 'handoff' then
  lengths = walk(part == 'ready' and ready or handoff)
else
  -- How to scan a key, and how many entries to read before a check of their size. Entries with
  -- payloads are read one by one if the largest size is unknown, and so are error logs.
  local known = tonumber(redis.pcall('HGET', sizes, 'largest') or 2000) or 2000
  local way = ({
    pool = {'HSCAN', pool, math.max(1, math.floor(most / known)), records},
    bucket = {'ZSCAN', bucket, 1000, function() places(bucket) end},
    leases = {'ZSCAN', leases, 1000, function() places(leases) end},
    dead = {'ZSCAN', dead, 1000, function() places(dead) end},
    attempts = {'HSCAN', attempts, 1000, function() books(attempts, '^(%d+)$') end},
    errors = {'HSCAN', errors, 1, function() books(errors) end}, -- any bytes are readable
    moved = {'HSCAN', moved, 1000, function() books(moved, '^(%d+) %a+ (%d+) (%d+) [01]$') end},
    done = {'ZSCAN', done, 1000, kept},
    results = {'HSCAN', results, 1, outcomes},
    schedules = {'HSCAN', schedules, 1, definitions},
    slots = {'ZSCAN', slots, 1000, function() rest(slots, 'ZREM') end},
    waiting = {'ZSCAN', waiting, 1000, function() rest(waiting, 'ZREM') end},
    fired = {'HSCAN', fired, 500, function() rest(fired, 'HDEL') end},
    runs = {'HSCAN', runs, 500, function() rest(runs, 'HDEL') end},
    turn = {'ZSCAN', turn, 1000, passes},
    lane = {'ZSCAN', lane, math.max(1, math.floor(most / known)), lanes},
    keyed = {'HSCAN', keyed, 1000, notes},
    rules = {'HSCAN', rules, 1000, settings},
    held = {'ZSCAN', held, 1000, function() holds(held) end},
    parked = {'ZSCAN', parked, 1000, function() holds(parked) end},
    holders = {'ZSCAN', holders, 500, running},
    rates = {'ZSCAN', rates, 1000, tats},
    blockers = {'ZSCAN', blockers, 500, blocks},
  })[part]
  scan(way[1], way[2], way[3], way[4])
end
count(stats, 'mended', mended)
return {'ok', now, cursor, looked, keys, ids, whats, repaired, lengths, nowhere}
