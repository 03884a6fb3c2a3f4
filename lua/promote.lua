-- promote: moves due jobs to the tail of ready, oldest due first, and jobs whose lease ran out to
-- the head. If such a job has finished attempts, it goes to bucket instead, due after a backoff.
-- Keys whose hold is over get turns, and so do those whose limits allow a start again. Stragglers
-- whose leases are over count no more.
--
-- KEYS[1]   bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[2]   ready     list of job IDs, next one at the head
-- KEYS[3]   leases    zset, job ID scored by the end of its lease
-- KEYS[4]   pool      hash, job ID to record
-- KEYS[5]   attempts  hash, job ID to number of finished attempts
-- KEYS[6]   errors    hash, job ID to its error log
-- KEYS[7]   moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[8]   handoff   list of job IDs on the way from a server's wait to its take
-- KEYS[9]   stats     hash, counter to number
-- KEYS[10]  slots     zset, schedule scored by its next slot (Unix ms)
-- KEYS[11]  waiting   zset, schedule scored by the slot that waits for its last run to finish
-- KEYS[12]  runs      hash, schedule to the history of its runs
-- KEYS[13]  idle      zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[14]  turn      zset, key of waiting jobs scored by its pass
-- KEYS[15]  lane      zset, place and ID of every ready job that has a key
-- KEYS[16]  keyed     hash, job ID to its place in a lane
-- KEYS[17]  sizes     hash, the size of the largest record, and the number of the last place
-- KEYS[18]  held      zset, key scored by the end of its hold (Unix ms)
-- KEYS[19]  parked    zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[20]  holders   zset, key and ID of every running job whose key has a limit of running jobs
-- KEYS[21]  rates     zset, key scored by its tat (Unix µs)
-- KEYS[22]  meta      hash, settings of the topic made by operators
-- KEYS[23]  blockers  zset, place and ID of every job that its key waits for (see limits)
-- KEYS[24]  next      hash, running job ID to the successor that it will have
-- KEYS[25]  dead      zset, job ID scored by the time of burial
-- KEYS[26]  notes     hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[27]  parcels   zset, jobs that ended runs have handed over, by target and number
-- ARGV[1]   limit     most jobs to move of each kind, at most 1,000 (unpack has a stack limit)
-- ARGV[2]   heal      1: also put back IDs in handoff, left by a server that died between wait and
--                     take, and store some successors of jobs that an earlier release has ended
-- ARGV[3]   channel   the control channel
-- ARGV[4]   topic     the topic's name, for the control channel
--
-- A run whose lease ran out counts as an attempt. The backoff doubles from 2 s after the second
-- attempt up to 64 s. Jobs of one call get up to a fifth more, each a different part, so that they
-- do not return together. If the jobs of a key run in their order, such a job stays the first one.
-- A call puts back about eighty of them, or fewer with long error logs: then wait is 0. Safe to
-- send twice.
-- Returns {'ok', now, moved, reclaimed, wait, due, waiting, rest, parcels}. wait is the time to the
-- next due job, lease end, slot, end of a hold, turn of a parked key or end of a straggler in µs,
-- -1 if there is none. due is the number of schedules with a due slot, waiting the number of those
-- with a waiting slot. rest is wait without the slots. parcels is 1 if heal is, and there are some.
-- Cost: O(log N + limit).
-- Uses: now stats lease append errors history control ring place rouse line_up reseat free_keys
-- Uses: holder order block unblock end_run close_books
local bucket, ready, leases, pool, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local errors, moved, handoff, stats = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local slots, waiting, runs, idle = KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local turn, lane, keyed, sizes, held = KEYS[14], KEYS[15], KEYS[16], KEYS[17], KEYS[18]
local parked, holders, rates = KEYS[19], KEYS[20], KEYS[21]
local meta, blockers, next, dead, notes = KEYS[22], KEYS[23], KEYS[24], KEYS[25], KEYS[26]
local parcels = KEYS[27]
local limit, heal, channel, topic = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]

-- few returns the first of some jobs whose leases ran out: those whose books a call can write in a
-- short time. A job is about as much work as twelve commands, and its error log as one for each 200
-- bytes.
local function few(all)
  local some, work = {}, 0
  for i, id in ipairs(all) do
    local size = redis.pcall('HSTRLEN', errors, id)
    work = work + 12 + (type(size) == 'number' and size / 200 or 0)
    if i > 1 and work > 1000 then
      break
    end
    some[i] = id
  end
  return some
end

local lapsed = few(redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, limit))
local due = redis.call('ZRANGEBYSCORE', bucket, '-inf', now, 'LIMIT', 0, limit)
-- With pcall: a key of a wrong type that only keys use must not stop jobs without keys.
local freed = redis.pcall('ZRANGEBYSCORE', held, '-inf', now, 'LIMIT', 0, limit)
local exact = string.format('%.3f', time[1] * 1000 + time[2] / 1000) -- rates are faster than ms
local spaced = redis.pcall('ZRANGEBYSCORE', parked, '-inf', exact, 'LIMIT', 0, limit)
local stragglers = redis.pcall('ZRANGEBYLEX', holders, '-', '(' .. string.char(1), 'LIMIT', 0,
  limit)

-- At maxmemory, a script can go on writing after it has deleted something. A script that begins
-- with a push cannot.
if #lapsed + #due > 0 or heal == '1' then
  redis.call('ZREM', bucket, '')
end

-- Places come first, then the books. The first time, a job goes to the head, because it has waited
-- already. After that it backs off as if it had failed. It may be the job that crashes the process,
-- and must not keep the others from running.
local reclaimed, pushed = 0, 0
local lanes = #lapsed + #due > 0 and redis.call('EXISTS', keyed) == 1
if lanes and type(redis.pcall('HLEN', keyed)) == 'table' then -- a wrong type: has any job a key?
  lanes = redis.pcall('HEXISTS', sizes, 'number') ~= 0
end
if #lapsed > 0 then
  local back, first, later, log, tally, lost = {}, {}, {}, {}, {}, {}
  local ordered = lanes and order_of(redis.pcall('HGET', meta, 'flow'))
  if lanes then
    unhold(holders, keyed, lapsed)
  end
  for _, id in ipairs(lapsed) do
    if redis.call('HEXISTS', pool, id) == 1 then
      local n = #back + 1
      local before, known = redis.pcall('HGET', attempts, id), redis.pcall('HGET', moved, id)
      local finished = type(before) == 'string' and tonumber(before) or 0
      local entry = {attempt = finished + 1, at = now, kind = 'lease_lost'}
      if entry.attempt == 1 then
        table.insert(first, 1, id)
      else
        tally[id] = type(known) == 'string' and string.match(known, '%d+ %d+ [01]$') or '0 0 0'
        local spent = string.match(tally[id], '^%d+')
        local step = 1000 * 2 ^ math.max(1, math.min(entry.attempt - 1 - spent, 6))
        entry.next = now + step + math.floor(step * (37 * #later % 200) / 1000)
        later[#later + 1] = id
      end
      back[n], log[n] = id, entry
    else
      close_books(attempts, errors, moved, {id})
      lost[#lost + 1] = id
    end
  end
  if lanes and #first > 0 then -- to their own places, or before all others
    if ordered then
      foremost(keyed, sizes, first)
    end
    pushed, first = line_up(turn, lane, keyed, first)
  end
  if #first > 0 then
    redis.call('LPUSH', ready, unpack(first))
    pushed = pushed + #first
  end
  if ordered then
    block(blockers, later, foremost(keyed, sizes, later))
  elseif lanes then
    local dues = {}
    for _, entry in ipairs(log) do
      dues[#dues + 1] = entry.next
    end
    reseat(keyed, sizes, later, dues)
  end
  for i, id in ipairs(back) do
    if log[i].next then
      redis.call('ZADD', bucket, string.format('%.0f', log[i].next), id)
    end
  end
  release(leases, lapsed)
  reclaimed = #back
  for i, id in ipairs(back) do
    if log[i].next then
      redis.pcall('HSET', moved, id, string.format('%.0f', log[i].next) .. ' retry ' .. tally[id])
    end
    failed(attempts, errors, id, 1, cjson.encode(log[i]))
    if scheduled(pool, runs, id) then
      end_run(runs, id, log[i].attempt, 'lease_lost')
    end
  end
  count(stats, 'reclaimed', reclaimed)
  count(stats, 'dropped', #lapsed - reclaimed)
  if #lost > 0 then
    -- Uses: ended
    local tell = endings(notes, pool, stats)
    tell.jobs(lost) -- without a record: only the notes are deleted
    tell.close()
  end
end

-- Jobs enter ready before they leave the bucket. An ID in both is dropped by take and promoted
-- again.
if #due > 0 then
  local laned, plain = 0, due
  if lanes then
    laned, plain = line_up(turn, lane, keyed, due)
  end
  if #plain > 0 then
    redis.call('RPUSH', ready, unpack(plain))
  end
  redis.call('ZREM', bucket, unpack(due))
  if lanes and redis.call('EXISTS', blockers) == 1 then
    local some = blocking(blockers, due, redis.call('HMGET', keyed, unpack(due)))
    if #some > 0 then -- their keys are parked until now
      redis.call('ZREM', blockers, unpack(some))
    end
  end
  pushed = pushed + laned + #plain
end

-- No server has said that these handlers have returned. Each has an entry of the topic and one of
-- its key (see prelude/straggler.lua).
local over, straggler = {}, {}
for i, entry in ipairs(stragglers) do
  local till = till_of('', entry) or 0
  if till > now or i == limit then -- there may be more
    straggler = {entry, till}
  end
  if till > now then
    break
  end
  local key = string.sub(entry, 21, 20 + (string.byte(entry, 20) or 0))
  over[#over + 1] = entry
  over[#over + 1] = lane_of(key) .. string.sub(entry, 2, 19) .. string.sub(entry, 21 + #key)
end
if #over > 0 then
  redis.pcall('ZREM', holders, unpack(over))
  nudge(channel, 'resume', topic, 1, '')
end
for _, one in ipairs({{held, freed}, {parked, spaced}}) do
  local jobs = #one[2] > 0 and free_keys(one[1], turn, lane, one[2], one[1] == parked) or 0
  if jobs > 0 then
    rouse(ready, jobs)
    pushed = pushed + jobs
  end
end
local rare = heal == '1' and redis.call('EXISTS', rates, next) or 0
if rare > 0 then -- a tat of the past is as good as none
  local us = string.format('%.0f', time[1] * 1000000 + time[2])
  local past = redis.pcall('ZRANGEBYSCORE', rates, '-inf', us, 'LIMIT', 0, 1000)
  if #past > 0 then
    redis.call('ZREM', rates, unpack(past))
  end
end

if heal == '1' then
  for _ = 1, math.min(redis.call('LLEN', handoff), limit) do
    redis.call('LMOVE', handoff, ready, 'RIGHT', 'LEFT')
    pushed = pushed + 1
  end
  if rare > 0 and redis.call('EXISTS', next) == 1 then
    -- Uses: successor sizes tend
    pushed = pushed + tend()
  end
end
if pushed > 0 then
  if lanes then
    rouse(ready, pushed)
  end
  ring(idle, channel, topic, pushed)
end

local endless = '(9999999999999' -- the score of a paused key
local heads = {
  redis.call('ZRANGE', bucket, 0, 0, 'WITHSCORES'),
  redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES'),
  redis.call('ZRANGE', slots, 0, 0, 'WITHSCORES'),
  redis.pcall('ZRANGEBYSCORE', held, '-inf', endless, 'WITHSCORES', 'LIMIT', 0, 1),
  redis.pcall('ZRANGE', parked, 0, 0, 'WITHSCORES'),
  straggler,
}
local waits, overdue = redis.call('ZCARD', waiting), 0
-- The server that fires a due slot asks again. Later slots must not wait for that.
if heads[3][2] and tonumber(heads[3][2]) <= now then
  overdue = redis.call('ZCOUNT', slots, '-inf', now)
  local after = string.format('(%.0f', now)
  heads[3] = redis.call('ZRANGEBYSCORE', slots, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
end
local wait, rest = -1, -1
for i, head in ipairs(heads) do
  if head[2] and head[1] ~= anchor() then
    local at = i == 5 and math.floor(head[2] * 1000 + 0.5) or math.ceil(head[2]) * 1000
    local left = math.max(0, at - time[1] * 1000000 - time[2])
    if wait < 0 or left < wait then
      wait = left
    end
    if i ~= 3 and (rest < 0 or left < rest) then
      rest = left
    end
  end
end
local handed = heal == '1' and redis.call('EXISTS', parcels) or 0
return {'ok', now, #due, reclaimed, wait, overdue, waits, rest, handed}
