-- give_back: gives jobs back to the head of ready because their server does not run them, or
-- because their handler holds the topic or their keys. No attempt is used up.
--
-- KEYS[1]    leases   zset, job ID scored by the end of its lease
-- KEYS[2]    ready    list of job IDs, next one at the head
-- KEYS[3]    stats    hash, counter to number
-- KEYS[4]    receipt  string, the last call of the series and its reply
-- KEYS[5]    pool     hash, job ID to record
-- KEYS[6]    idle     zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[7]    meta     hash, settings of the topic made by operators
-- KEYS[8]    turn     zset, key of waiting jobs scored by its pass
-- KEYS[9]    lane     zset, place and ID of every ready job that has a key
-- KEYS[10]   keyed    hash, job ID to its place in a lane
-- KEYS[11]   held     zset, key scored by the end of its hold (Unix ms)
-- KEYS[12]   sizes    hash, the size of the largest record, and the number of the last place
-- KEYS[13]   holders  zset, key and ID of every running job of a limited key
-- KEYS[14]   moved    hash, job ID to its current due time, if it differs from the record's
-- ARGV[1]    number   number of this call in its series
-- ARGV[2]    channel  the control channel
-- ARGV[3]    topic    the topic's name, for the control channel
-- ARGV[4]    period   ms for which the topic is held; 0: it is not; keys: each key of the jobs is
-- ARGV[5]    by       who holds it
-- ARGV[6]    reason   why
-- ARGV[7..]  jobs     rows (see prelude/settle.lua) in the order in which the jobs run, of two
--                     values: when the job was due (Unix ms; empty: not known), and 1 if its
--                     handler may still run, else 0. With keys they are three: the due time, the ms
--                     for which the key of the job is held, and the key
--
-- If the jobs of a key run in their order, such a job stays the first one: its handler may have
-- begun. At most 1,000 jobs a call.
-- Returns {'ok', now, letters}: o for given back, l for lost, g for gone; no letters if all are
-- given back.
-- Cost: O(jobs × log N).
-- Uses: now receipt stats lease owns settle control ring hold trace place rouse line_up hold_key
-- Uses: reseat order block holder straggler
local leases, ready, stats = KEYS[1], KEYS[2], KEYS[3]
local receipt, pool, idle, meta = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local turn, lane, keyed, held, sizes = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local holders, moved = KEYS[13], KEYS[14]
local number, channel, topic = ARGV[1], ARGV[2], ARGV[3]
local period, by, reason, jobs, first = tonumber(ARGV[4]), ARGV[5], ARGV[6], ARGV, 7
local of_keys = not period

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local ids, where, letters = rows(leases, pool, jobs, first)
-- hold_keys holds the keys of the jobs. The timers have to know the end if no other is earlier. It
-- returns how many jobs have a key that this call does not hold.
local function hold_keys()
  local before, free = redis.call('ZRANGE', held, 0, 0, 'WITHSCORES'), 0
  for i = 1, #ids do
    local ms, key = tonumber(jobs[where[i] + 1]), jobs[where[i] + 2]
    if ms > 0 then
      hold_key(held, turn, key, now + ms)
    else
      free = free + 1
    end
  end
  local head = redis.call('ZRANGE', held, 0, 0, 'WITHSCORES')
  if head[2] and (not before[2] or tonumber(head[2]) < tonumber(before[2])) then
    nudge(channel, 'wake', topic, 0, '')
  end
  return free
end

if #ids > 0 then
  redis.call('ZREM', leases, '') -- after a deletion, the script can write at maxmemory
  if not of_keys and period > 0 then -- before the jobs are ready again
    hold(meta, now + period, by, reason)
  end
  local still, dues = {}, {}
  for i, id in ipairs(ids) do
    still[#still + 1] = not of_keys and jobs[where[i] + 1] == '1' and id or nil
    dues[i] = jobs[where[i]]
  end
  if #still > 0 then
    straggle(holders, sizes, still, redis.call('ZMSCORE', leases, unpack(still)),
      redis.call('HMGET', keyed, unpack(still)))
  end
  local laned, plain = 0, ids
  if redis.call('EXISTS', keyed) == 1 then -- to their own places, or before all others
    if order_of(redis.pcall('HGET', meta, 'flow')) then
      foremost(keyed, sizes, ids)
    end
    laned, plain = line_up(turn, lane, keyed, ids)
  end
  for i = #plain, 1, -1 do
    redis.call('LPUSH', ready, plain[i])
  end
  local free = period == 0 and #ids or 0
  if of_keys then
    free = hold_keys()
    laned = math.min(laned, free)
  end
  if laned > 0 then
    rouse(ready, laned)
  end
  release(leases, ids)
  touch(moved, ids, dues)
  if free > 0 then
    ring(idle, channel, topic, free)
  end
end
count(stats, period == 0 and 'returned' or 'held', #ids)
remember(receipt, number, letters)
return {'ok', now, letters}
