-- unpark: gives keys whose limits were reached their turns back. A server calls it after jobs of a
-- topic with limits of keys have ended. A client calls it after it has changed limits.
--
-- KEYS[1]    parked   zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[2]    holders  zset, key and ID of every running job whose key has a limit of running jobs
-- KEYS[3]    leases   zset, job ID scored by the end of its lease
-- KEYS[4]    keyed    hash, job ID to its place in a lane
-- KEYS[5]    turn     zset, key of waiting jobs scored by its pass
-- KEYS[6]    lane     zset, place and ID of every ready job that has a key
-- KEYS[7]    ready    list of job IDs, next one at the head
-- KEYS[8]    idle     zset, waiting server scored by the time its wait began (Unix ms)
-- ARGV[1]    channel  the control channel
-- ARGV[2]    topic    the topic's name, for the control channel
-- ARGV[3]    most     most keys to look at if no jobs are given, at most 1,000
-- ARGV[4..]  jobs     for each run that has ended: the key of its job (empty: none), its ID, and
--                     the end of its lease if the job was cancelled or replaced while it ran (or
--                     several, see prelude/settle.lua; else empty). None: all keys are given turns
--
-- A job that has a lease again keeps its place. A handler that has returned is no straggler any
-- more. If it took a place of the topic, the servers get a message. At most 400 jobs a call. A key
-- that has a turn although its limits are reached is parked again by the next take. Entries of
-- holders that a dead server has left are removed, up to 100 a call. Safe to send twice.
-- Returns {'ok', now, left}: the number of keys that are parked now.
-- Cost: O(jobs × log N).
-- Uses: now control place rouse free_keys holder straggler ring sweep
local parked, holders, leases, keyed = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local turn, lane, ready, idle = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local channel, topic, most, jobs, first = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV, 4

local keys, ended, seen, gone, over = {}, 0, {}, {}, {}
if #jobs < first then
  keys = redis.call('ZRANGE', parked, 0, most - 1)
  ended = math.huge
else
  local ids = {}
  for at = first, #jobs, 3 do
    ids[#ids + 1] = jobs[at + 1]
  end
  local leased = redis.call('ZMSCORE', leases, unpack(ids))
  local places = redis.pcall('HMGET', keyed, unpack(ids)) -- of a wrong type: no job has a place
  places = places.err and {} or places
  local names = {}
  for i, id in ipairs(ids) do
    local at = first + 3 * (i - 1)
    local key, ends = jobs[at], jobs[at + 2]
    for ending in string.gmatch(ends, '%S+') do
      over[#over + 1], gone[#gone + 1] = stragglers_of(key, ending, id)
    end
    local runs = leased[i] and places[i] and key_of(places[i]) == key
    if key ~= '' and (ends ~= '' or not runs) then
      if not runs then
        gone[#gone + 1] = holder_of(key, id)
      end
      ended = ended + 1
      if not seen[key] then
        seen[key], names[#names + 1] = true, key
      end
    end
  end
  local scores = #names > 0 and redis.call('ZMSCORE', parked, unpack(names)) or {}
  for i, key in ipairs(names) do
    keys[#keys + 1] = scores[i] and key or nil
  end
end
-- With pcall: holders of a wrong type has no places. A check finds it.
local freed = #over > 0 and redis.pcall('ZREM', holders, unpack(over))
if type(freed) == 'number' and freed > 0 then
  nudge(channel, 'resume', topic, 1, '')
end
if #gone > 0 and type(redis.pcall('ZCARD', holders)) == 'number' then
  redis.call('ZREM', holders, unpack(gone))
  sweep(holders, leases, keyed)
end
if #keys > 0 then
  local waiting = math.min(free_keys(parked, turn, lane, keys, true), ended)
  if waiting > 0 then
    rouse(ready, waiting)
    ring(idle, channel, topic, waiting)
  end
end
local left = redis.pcall('ZCARD', parked) -- of a wrong type: a check finds it
return {'ok', now, type(left) == 'number' and left or 0}
