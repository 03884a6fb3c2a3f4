-- schedule_info: reads all data of schedules. Writes nothing.
--
-- KEYS[1]    schedules  hash, schedule to definition
-- KEYS[2]    slots      zset, schedule scored by its next slot (Unix ms)
-- KEYS[3]    waiting    zset, schedule scored by the slot that waits for its last run to finish
-- KEYS[4]    fired      hash, schedule to the state of its slots
-- KEYS[5]    runs       hash, schedule to the history of its runs
-- KEYS[6]    pool       hash, job ID to record
-- KEYS[7]    leases     zset, job ID scored by the end of its lease
-- KEYS[8]    dead       zset, job ID scored by the time of burial
-- ARGV[1]    bytes      how many bytes of each definition to return; -1: all
-- ARGV[2]    budget     about how many bytes of definitions to read; the first one is always read
-- ARGV[3..]  names      at most 1,000
--
-- Returns {'ok', now, definitions, slots, waiting, states, histories, last}: six lists with one
-- value for each name, fewer if the budget was used up. A history consists of the counters and the
-- newest entry. last is the state of the last fired job: running, going (waiting or backing off),
-- or none.
-- Cost: O(names × log N).
-- Uses: now schedule history
local schedules, slots, waiting, fired = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local runs, pool, leases, dead = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local bytes, budget = tonumber(ARGV[1]), tonumber(ARGV[2])
local names, first = ARGV, 3

local definitions, at, waits, states, histories, last = {}, {}, {}, {}, {}, {}
for i = first, #names do
  local name, n = names[i], i - first + 1
  budget = budget - redis.call('HSTRLEN', schedules, name)
  if budget < 0 and n > 1 then
    break
  end
  definitions[n] = string.sub(redis.call('HGET', schedules, name) or '', 1, bytes)
  at[n] = redis.call('ZSCORE', slots, name) or ''
  waits[n] = redis.call('ZSCORE', waiting, name) or ''
  states[n] = redis.call('HGET', fired, name) or ''
  local log = redis.call('HGET', runs, name) or ''
  local ended = tonumber(string.match(log, '^%d+') or '')
  local newest = ended and ended > 0 and name .. '\n' .. (ended - 1) % runs_most
  histories[n] = log .. ' ' .. (newest and redis.call('HGET', runs, newest) or '')
  local state = state_of(states[n])
  last[n] = 'none'
  if state and going(pool, dead, state) then
    last[n] = redis.call('ZSCORE', leases, state.job) and 'running' or 'going'
  end
end
return {'ok', now, definitions, at, waits, states, histories, last}
