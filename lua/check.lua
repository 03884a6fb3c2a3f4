-- check: looks through a slice of one key of a topic for what no transition leaves behind, and with repair removes it.
--
-- KEYS[1]   pool      hash, job id to record
-- KEYS[2]   bucket    zset, job id scored by due time (Unix ms)
-- KEYS[3]   leases    zset, job id scored by the end of its lease
-- KEYS[4]   dead      zset, job id scored by the time of burial
-- KEYS[5]   attempts  hash, job id to finished attempts
-- KEYS[6]   errors    hash, job id to its last errors
-- KEYS[7]   moved     hash, job id to its present due time, if that is not the record's
-- KEYS[8]   done      zset, job id scored by the time until which it is kept
-- KEYS[9]   results   hash, job id to what is kept of it
-- KEYS[10]  schedules  hash, name to definition
-- KEYS[11]  slots     zset, schedule scored by its next slot (Unix ms)
-- KEYS[12]  waiting   zset, schedule scored by the slot that waits for the end of the last run
-- KEYS[13]  fired     hash, schedule to what has become of its slots
-- KEYS[14]  runs      hash, schedule to the history of its runs
-- KEYS[15]  ready     list of job ids, next one at the head
-- KEYS[16]  handoff   list of job ids between a server's wait and its take
-- KEYS[17]  stats     hash, counter to number
-- KEYS[18]  sizes     hash, the size of the largest record
-- ARGV[1]   part      which of the first sixteen keys, by its name here; or all, for what shows without looking through any
-- ARGV[2]   cursor    where the slice begins, 0 for the beginning; of a list how many ids from its tail to pass over
-- ARGV[3]   limit     about how many entries to look at
-- ARGV[4]   most      no further entry is looked at once there are so many bytes of them
-- ARGV[5]   repair    1 to repair, 0 to look only
--
-- What is found: no record (an id without one), two places, orphan (books of no job), unreadable (books that are not what they should
-- be), score (a time that cannot be), anchor (left alone in leases), wrong type (the key is the whole name; the caller leaves out the
-- parts that need it). Of schedules, with the name as id: no slot (neither paused nor ended, and nowhere), no state, no history,
-- unreadable (a state that is not one, or not of this definition), score, no schedule (left of one without a definition). One that
-- gets a place again has the slot 0: a server works out the first one from now on.
--
-- With repair, the size of the largest record is noted again if it was lost.
-- Of an id in leases only the books are touched: it is its server's. Safe to send twice.
-- Returns {'ok', now, cursor, looked, keys, ids, whats, repaired, sizes, nowhere}: cursor is 0 at the end; four lists of what was found,
-- repaired 1 or 0; with all also the sizes of the first sixteen keys, -1 for a wrong type; nowhere lists the ids with a record that are
-- in neither bucket nor leases nor dead, so they should be in ready. Of a list, from its tail to its head: pages of ids, and its
-- length as the only one of sizes. (A script, as go-redis may send a mere LRANGE to a replica that lags.)
-- Cost: O(limit × log N).
-- Uses: now stats sizes lease measure schedule
local pool, bucket, leases, dead, attempts, errors, moved = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local done, results, schedules, slots, waiting = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local fired, runs, ready, handoff, stats, sizes = KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17], KEYS[18]
local part, cursor, limit, most, repair = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

local keys, ids, whats, repaired, mended = {}, {}, {}, {}, 0
local nowhere = {}

-- found notes one finding, and tells whether it is to be repaired.
local function found(key, id, what, can)
  local mend = can and repair == '1'
  local n = #keys + 1
  keys[n], ids[n], whats[n], repaired[n] = key, id, what, mend and 1 or 0
  mended = mended + repaired[n]
  return mend
end

-- scan reads a slice of a key by and by, for Redis has no way to bound the bytes of a scan, and calls each for every page of entries.
-- step is the most entries that it reads without a look at their size.
local looked, entries = 0, {}
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
  until cursor == '0' or looked >= limit or bytes >= most
end

-- walk reads pages of ids of a list, from its tail to its head.
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
    {'HLEN', pool}, {'ZCARD', bucket}, {'ZCARD', leases}, {'ZCARD', dead}, {'HLEN', attempts}, {'HLEN', errors}, {'HLEN', moved},
    {'ZCARD', done}, {'HLEN', results}, {'HLEN', schedules}, {'ZCARD', slots}, {'ZCARD', waiting}, {'HLEN', fired}, {'HLEN', runs},
    {'LLEN', ready}, {'LLEN', handoff},
  }) do
    lengths[i] = measure(one[1], one[2])
  end
  measure('HLEN', stats)
  measure('HLEN', sizes)
  for _, key in ipairs(wrong) do
    found(key, '', 'wrong type', false)
  end
  if lengths[3] == 1 and redis.call('ZSCORE', leases, anchor()) and found('leases', '', 'anchor', true) then
    redis.call('DEL', leases)
  end
  return lengths
end

-- timed finds a time that cannot be: those that can have 13 digits. The due time of a job in the bucket is the caller's to find out.
local function timed(zset, id, score)
  if (tonumber(score) or math.huge) > 9999999999999 and found(part, id, 'score', zset ~= bucket) then
    redis.call('ZREM', zset, '') -- having deleted, the script may write at maxmemory
    redis.call('ZADD', zset, now, id)
  end
end

-- enqueued is when the record of a job was written.
local function enqueued(record)
  return tonumber(string.sub(record, 13, 25)) or 0
end

-- strip removes what a former job of the same id has left behind.
local function strip(id)
  redis.call('ZREM', dead, id)
  redis.pcall('HDEL', attempts, id)
  redis.pcall('HDEL', errors, id)
  redis.pcall('HDEL', moved, id)
end

local function records()
  local largest = 0
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
    for i, id in ipairs(some) do
      if not delayed[i] and not leased[i] and not buried[i] then
        nowhere[#nowhere + 1] = id
      elseif leased[i] and (delayed[i] or buried[i]) then
        found('leases', id, 'two places', false)
      elseif delayed[i] and buried[i] and enqueued(written[i]) > tonumber(buried[i]) then
        if found('dead', id, 'two places', true) then
          strip(id) -- of a former job of this id, whose record was lost
        end
      elseif delayed[i] and buried[i] and found('bucket', id, 'two places', true) then
        redis.call('ZREM', bucket, id)
      end
    end
  end
end

local function places(zset)
  local no_job = anchor()
  for i = 1, #entries, 2 do
    local id = entries[i]
    local gone = id ~= no_job and redis.call('HEXISTS', pool, id) == 0
    if gone and found(part, id, 'no record', zset ~= leases) then
      redis.call('ZREM', zset, id)
    elseif id ~= no_job and (not gone or zset == leases) then
      timed(zset, id, entries[i + 1])
    end
  end
end

-- books looks through entries of one to five words, of which numbers have 13 digits at most.
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
    elseif found(part, entries[i], 'no record', true) then
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

-- The fields of a state, by their types: those that are always there, with what they are if nothing is known, and those that need not be.
local always = {made = now, changed = now, from = now, fired = 0, since = 0, skipped = 0, missed = 0}
local maybe = {
  slot = 'number', at = 'number', job = 'string', paused = 'number', ended = 'boolean', catching = 'number', trigger = 'number',
  more = 'number',
}

-- renew makes a state of what is there, and tells whether it was one of this definition already.
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

local function rules()
  for i = 1, #entries, 2 do
    local name, definition = entries[i], entries[i + 1]
    local text = redis.call('HGET', fired, name)
    local state = state_of(text) or {}
    local stale = not renew(state, definition) and found('fired', name, text and 'unreadable' or 'no state', true)
    local placed, cleared = false, false
    for place, zset in pairs({slots = slots, waiting = waiting}) do
      local score = redis.call('ZSCORE', zset, name)
      if score and tonumber(score) and score % 1 == 0 and score + 0 >= 0 and score + 0 <= 9999999999999 then
        placed = true
      elseif score and found(place, name, 'score', true) then
        redis.call('ZREM', zset, name)
        cleared = true
      elseif score then
        placed = true
      end
    end
    if not placed and not state.paused and not state.ended and (cleared or found('slots', name, 'no slot', true)) then
      local last = state.slot and state.slot < now + 60000 and state.slot or 0 -- else Redis's clock has been set back
      stale, state.from, state.catching = true, math.max(now, last), nil
      redis.call('ZREM', slots, '') -- having deleted, the script may write at maxmemory
      redis.call('ZADD', slots, 0, name)
    end
    if stale then
      redis.call('HDEL', fired, '')
      redis.call('HSET', fired, name, cjson.encode(state))
    end
    local log = redis.pcall('HGET', runs, name)
    if type(log) ~= 'table' and not string.match(log or '', '^%d+ %d+$') and found('runs', name, 'no history', true) then
      redis.call('HDEL', runs, '')
      redis.call('HSET', runs, name, '0 0')
    end
  end
end

-- rest finds what is left of schedules without a definition. A run in a history has a field of its own, which begins with the name of
-- its schedule.
local function rest(key, remove)
  for i = 1, #entries, 2 do
    local name = string.match(entries[i], '^(.*)\n%d+$') or entries[i]
    if redis.call('HEXISTS', schedules, name) == 0 and found(part, name, 'no schedule', true) then
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
  -- How to look through a key, and how many entries of it are read without a look at their size: those that have a payload one by one, if
  -- it is not known how large the largest is, and error logs too.
  local known = tonumber(redis.pcall('HGET', sizes, 'largest') or 2000) or 2000
  local way = ({
    pool = {'HSCAN', pool, math.max(1, math.floor(most / known)), records},
    bucket = {'ZSCAN', bucket, 1000, function() places(bucket) end},
    leases = {'ZSCAN', leases, 1000, function() places(leases) end},
    dead = {'ZSCAN', dead, 1000, function() places(dead) end},
    attempts = {'HSCAN', attempts, 1000, function() books(attempts, '^(%d+)$') end},
    errors = {'HSCAN', errors, 1, function() books(errors) end}, -- append and readers get along with anything
    moved = {'HSCAN', moved, 1000, function() books(moved, '^(%d+) %a+ (%d+) (%d+) [01]$') end},
    done = {'ZSCAN', done, 1000, kept},
    results = {'HSCAN', results, 1, outcomes},
    schedules = {'HSCAN', schedules, 1, rules},
    slots = {'ZSCAN', slots, 1000, function() rest(slots, 'ZREM') end},
    waiting = {'ZSCAN', waiting, 1000, function() rest(waiting, 'ZREM') end},
    fired = {'HSCAN', fired, 500, function() rest(fired, 'HDEL') end},
    runs = {'HSCAN', runs, 500, function() rest(runs, 'HDEL') end},
  })[part]
  scan(way[1], way[2], way[3], way[4])
end
count(stats, 'mended', mended)
return {'ok', now, cursor, looked, keys, ids, whats, repaired, lengths, nowhere}
