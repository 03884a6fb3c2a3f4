-- schedule_fire: fires slots: stores their jobs, and notes what comes next. Only one of several
-- servers fires a slot. It also reads the slots that are to be fired together next.
--
-- KEYS[1]    slots     zset, schedule scored by its next slot (Unix ms)
-- KEYS[2]    waiting   zset, schedule scored by the slot that waits for its last run to finish
-- KEYS[3]    fired     hash, schedule to the state of its slots
-- KEYS[4]    runs      hash, schedule to the history of its runs
-- KEYS[5]    pool      hash, job ID to record
-- KEYS[6]    bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[7]    ready     list of job IDs, next one at the head
-- KEYS[8]    leases    zset, job ID scored by the end of its lease
-- KEYS[9]    dead      zset, job ID scored by the time of burial
-- KEYS[10]   attempts  hash, job ID to number of finished attempts
-- KEYS[11]   errors    hash, job ID to its error log
-- KEYS[12]   moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[13]   stats     hash, counter to number
-- KEYS[14]   sizes     hash, the size of the largest record
-- KEYS[15]   idle      zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[16]   turn      zset, key of waiting jobs scored by its pass
-- KEYS[17]   lane      zset, place and ID of every ready job that has a key
-- KEYS[18]   keyed     hash, job ID to its place in a lane
-- KEYS[19]   blockers  zset, place and ID of every job that its key waits for (see limits)
-- KEYS[20]   parked    zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[21]   holders   zset, key and ID of every running job whose key has a limit of running jobs
-- KEYS[22]   schedules  hash, schedule to definition
-- KEYS[23]   next      hash, running job ID to the successor that it will have
-- KEYS[24]   notes     hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[25]   parcels   zset, what is on the way to other topics, by target and number
-- KEYS[26]   plans     hash, target to the plan by which its parcels are delivered
-- ARGV[1]    channel   the control channel
-- ARGV[2]    topic     the topic's name, for the control channel
-- ARGV[3]    most      most schedules to read, at most 1,000; 0: read none
-- ARGV[4]    bytes     the call reads no further definition after that many bytes
-- ARGV[5]    gather    ms, by how much the slots of schedules that are read together differ at most
-- ARGV[6]    ahead     ms, schedules whose slot is later are not read
-- ARGV[7]    stuck     how many late slots the caller cannot fire
-- ARGV[8..]  entries   for each schedule: name, nonce of its definition, place (slots or waiting),
--                      its slot there, overlap (allow, skip, queue or cancel), run limit (0: none),
--                      missed, skipped, next slot (empty: none), the slot that is to wait for these
--                      jobs (empty: none), the last slot of the gap if that slot is one of a
--                      catch-up (else empty), number of jobs; and for each job: slot, nonce, head
--                      and tail of the record, due time
--
-- No schedule may occur twice in one call. At most 500 schedules and 1,000 jobs a call (unpack has
-- a stack limit). Nonces are in hexadecimal digits. The ID of a job is the name, an @ and the slot.
--
-- A schedule is left unchanged if it no longer is as the caller read it: another server has fired
-- the slot, somebody has changed the schedule, or Redis's clock was set back and the slot is in the
-- future. So the script is safe to send twice.
--
-- A slot is late if it is more than gather ms old. If more slots are late than are stuck, the
-- schedules with a due slot are read, the latest slot first. Otherwise they are those from the
-- first slot that is not late, in the order of their slots.
-- Returns {'ok', now, letters}: one letter a schedule, f for fired, w if nothing was done because
-- the last run has not finished, c for changed since the caller read it. Unless most is 0, it also
-- returns wait, waiting, names, slots, definitions and states: the time in µs until all slots that
-- were read have come, without any until the next one comes, -1 if there is none; the number of
-- schedules with a waiting slot; and four lists of the schedules that were read.
-- Cost: O((schedules + jobs) × log N).
-- Uses: now stats sizes lease control ring schedule history unready expect place rouse free_keys
-- Uses: unblock end_run close_books holder straggler look ended withdraw key
local slots, waiting, fired, runs = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local pool, bucket, ready, leases, dead = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local attempts, errors, moved = KEYS[10], KEYS[11], KEYS[12]
local stats, sizes, idle = KEYS[13], KEYS[14], KEYS[15]
local turn, lane, keyed = KEYS[16], KEYS[17], KEYS[18]
local blockers, parked, holders, schedules = KEYS[19], KEYS[20], KEYS[21], KEYS[22]
local next, notes, parcels, plans = KEYS[23], KEYS[24], KEYS[25], KEYS[26]
local channel, topic, most, bytes = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local gather, ahead, stuck = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local entries, first = ARGV, 8

-- reports is for endings.
local function reports()
  -- Uses: parcels post link
  return reporter(notes, parcels, plans)
end

local names, starts = {}, {}
local at = first
while at <= #entries do
  names[#names + 1], starts[#starts + 1] = entries[at], at
  at = at + 12 + 5 * entries[at + 11]
end
local due = redis.call('ZMSCORE', slots, unpack(names))
local waits = redis.call('ZMSCORE', waiting, unpack(names))
local states = redis.call('HMGET', fired, unpack(names))
-- A wrong type must cause an error before the first write, because a slot is fired as a whole or
-- not at all.
redis.call('HLEN', pool)
redis.call('ZCARD', bucket)
redis.call('LLEN', ready)
redis.call('ZCARD', leases)
redis.call('ZCARD', dead)
redis.call('ZCARD', turn)
redis.call('ZCARD', lane)
redis.call('HLEN', keyed)
redis.call('HLEN', schedules)

local records, later, soon = {}, {}, {}
local put, wait, told = {}, {}, {} -- entries for slots, for waiting and for fired
local gone, released = {}, {} -- names to remove from slots, and from waiting
local letters, total, skips, misses, cancels, freed, largest = {}, 0, 0, 0, 0, 0, 0
local enqueued = '\173' .. string.format('%013.0f', now)

local function add(list, a, b)
  list[#list + 1] = a
  list[#list + 1] = b
end

-- store creates the job of a slot. A record with the same nonce is this very job: an earlier call
-- was interrupted after it had stored the job.
local function store(name, state, job)
  local slot, mark, head, tail = entries[job], entries[job + 1], entries[job + 2], entries[job + 3]
  local when = tonumber(entries[job + 4])
  local id = name .. '@' .. slot
  local present = redis.call('HGET', pool, id)
  if present and hex(present) ~= mark then
    return 1 -- somebody has enqueued a job with this ID
  end
  if not present then
    local record = head .. enqueued .. tail
    local has_lane = to_lane(id, record, when)
    if when > now then
      add(later, string.format('%.0f', when), id)
    elseif not has_lane then
      soon[#soon + 1] = id
    end
    add(records, id, record)
    total = total + 1
    largest = math.max(largest, #records[#records])
  end
  state.fired = state.fired + 1
  state.slot, state.at, state.job = tonumber(slot), now, id
  return 0
end

for i, start in ipairs(starts) do
  local name, nonce, place = entries[start], entries[start + 1], entries[start + 2]
  local from = entries[start + 3]
  local overlap, limit = entries[start + 4], tonumber(entries[start + 5])
  local missed = tonumber(entries[start + 6])
  local skipped, after, rest = tonumber(entries[start + 7]), entries[start + 8], entries[start + 9]
  local gap, jobs = tonumber(entries[start + 10]), tonumber(entries[start + 11])
  local state = state_of(states[i])
  local score = due[i]
  if place == 'waiting' then
    score = waits[i]
  elseif tonumber(from) > now then
    score = nil
  end
  local letter = 'c'
  if state and state.nonce == nonce and score
    and (score == from or tonumber(score) == tonumber(from)) then
    local busy = overlap ~= 'allow' and jobs > 0 and going(pool, dead, state)
    if busy and overlap == 'cancel' then
      busy = false
      if flagged(pool, state.job) then
        local _, n = withdraw({state.job}, {}, {true}, pool, bucket, ready, lane, keyed, leases,
          dead, attempts, errors, moved, runs, blockers, parked, turn, holders, sizes, next,
          channel, topic, notes, stats, reports)
        cancels, freed = cancels + 1, freed + n
      end
    end
    letter = busy and place == 'waiting' and 'w' or 'f'
    if letter == 'f' then
      if not busy then
        for job = start + 12, start + 7 + 5 * jobs, 5 do
          skipped = skipped + store(name, state, job)
        end
      elseif overlap == 'skip' then
        skipped = skipped + jobs
      else
        rest = entries[start + 12] -- its slot waits
      end
      state.catching = rest ~= '' and gap or nil
      if limit > 0 and state.fired - state.since >= limit or after == '' and rest == '' then
        state.ended = true
        gone[#gone + 1], released[#released + 1] = name, name
      elseif rest ~= '' then
        add(wait, rest, name)
        gone[#gone + 1] = name
      else
        add(put, after, name)
        released[#released + 1] = waits[i] and name or nil
      end
      state.skipped, state.missed = state.skipped + skipped, state.missed + missed
      skips, misses = skips + skipped, misses + missed
      add(told, name, cjson.encode(state))
    end
  end
  letters[i] = letter
end

-- The schedule comes last, so that its slot is fired again if something fails before.
-- Uses: place_jobs
local pushed = #soon + enlane(turn, lane, keyed, sizes, ready) + freed
if #records > 0 then
  redis.call('HSET', pool, unpack(records))
end
if #told > 0 then
  redis.call('HSET', fired, unpack(told))
end
if #put > 0 then
  redis.call('ZADD', slots, unpack(put))
end
if #wait > 0 then
  redis.call('ZADD', waiting, unpack(wait))
end
if #gone > 0 then
  redis.call('ZREM', slots, unpack(gone))
end
if #released > 0 then
  redis.call('ZREM', waiting, unpack(released))
end
count(stats, 'enqueued', total)
count(stats, 'fired', total)
count(stats, 'skipped', skips)
count(stats, 'missed', misses)
count(stats, 'cancelled', cancels)
if pushed > 0 then
  ring(idle, channel, topic, pushed)
end
letters = table.concat(letters)
if most == 0 then
  return {'ok', now, letters}
end

local fresh, wait_for, last, list = string.format('%.0f', now - gather), -1, now
if redis.call('ZCOUNT', slots, '-inf', '(' .. fresh) > stuck then
  list = redis.call('ZRANGE', slots, now, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, most, 'WITHSCORES')
else
  -- Where slots are dense, the first guess has them all.
  local guess = string.format('%.0f', now + gather + 1)
  list = redis.call('ZRANGEBYSCORE', slots, fresh, guess, 'WITHSCORES', 'LIMIT', 0, most)
  local head = list[2]
    or redis.call('ZRANGEBYSCORE', slots, guess, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  wait_for = tonumber(head or -1)
  last = wait_for + gather
  if head and wait_for > now + 1 and wait_for <= now + ahead then
    list = redis.call('ZRANGEBYSCORE', slots, fresh, string.format('%.0f', last), 'WITHSCORES',
      'LIMIT', 0, most)
  end
end
local read, at_slots, definitions, size = {}, {}, {}, 0
for i = 1, #list, 2 do
  if size >= bytes or tonumber(list[i + 1]) > last then
    break
  end
  local n, definition = #read + 1, redis.call('HGET', schedules, list[i]) or ''
  read[n], at_slots[n], definitions[n] = list[i], list[i + 1], definition
  size, wait_for = size + #definition, math.max(wait_for, tonumber(list[i + 1]))
end
local texts = #read > 0 and redis.call('HMGET', fired, unpack(read)) or {}
for i = 1, #read do
  texts[i] = texts[i] or ''
end
if wait_for >= 0 then
  wait_for = math.max(0, wait_for * 1000 - time[1] * 1000000 - time[2])
end
return {'ok', now, letters, wait_for, redis.call('ZCARD', waiting), read, at_slots, definitions,
  texts}
