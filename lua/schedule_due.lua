-- schedule_due: reads the schedules that have something to fire. Writes nothing.
--
-- KEYS[1]    schedules  hash, schedule to definition
-- KEYS[2]    slots      zset, schedule scored by its next slot (Unix ms)
-- KEYS[3]    waiting    zset, schedule scored by the slot that waits for its last run to finish
-- KEYS[4]    fired      hash, schedule to the state of its slots
-- KEYS[5]    pool       hash, job ID to record
-- KEYS[6]    dead       zset, job ID scored by the time of burial
-- ARGV[1]    place      slots or waiting: where to look
-- ARGV[2]    offset     how many to skip
-- ARGV[3]    limit      most schedules to read, at most 1,000
-- ARGV[4]    bytes      the call reads no further definition after that many bytes
-- ARGV[5..]  which      waiting: if any, only these are read, at most 1,000, whatever offset and
--                       limit say
--
-- Schedules with a due slot come with the latest slot first. Of the schedules with a waiting slot,
-- only those whose last run has finished are returned.
-- Returns {'ok', now, looked, names, slots, definitions, states}: looked is how many were read. It
-- is less than limit only if there are no more, or if bytes was reached.
-- Cost: O(log N + offset + limit).
-- Uses: now schedule
local schedules, slots, waiting, fired = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local pool, dead = KEYS[5], KEYS[6]
local place, offset, limit, bytes = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local which, first = ARGV, 5

local list = {}
if which[first] then
  local score = redis.call('ZMSCORE', waiting, unpack(which, first))
  for i = first, #which do
    list[2 * (i - first) + 1], list[2 * (i - first) + 2] = which[i], score[i - first + 1]
  end
elseif place == 'waiting' then
  list = redis.call('ZRANGE', waiting, offset, offset + limit - 1, 'WITHSCORES')
else
  -- The latest first: a slot that is on time does not wait for slots that were missed long ago.
  list = redis.call('ZRANGE', slots, now, '-inf', 'BYSCORE', 'REV', 'LIMIT', offset, limit,
    'WITHSCORES')
end
local found = {}
for i = 1, #list, 2 do
  found[#found + 1] = list[i]
end
local texts = #found > 0 and redis.call('HMGET', fired, unpack(found))
local names, at, definitions, states = {}, {}, {}, {}
local looked, size, n = 0, 0, 0
for i = 1, #list, 2 do
  if size >= bytes then
    break
  end
  looked = looked + 1
  local text = texts[looked]
  local state = place == 'waiting' and state_of(text)
  if place ~= 'waiting' or state and list[i + 1] and not going(pool, dead, state) then
    local definition = redis.call('HGET', schedules, list[i]) or ''
    n = n + 1
    names[n], at[n], definitions[n], states[n] = list[i], list[i + 1], definition, text or ''
    size = size + #definition
  end
end
return {'ok', now, looked, names, at, definitions, states}
