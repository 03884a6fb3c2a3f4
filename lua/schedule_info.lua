-- schedule_info: reads all that is known of schedules. Writes nothing.
--
-- KEYS[1]    schedules  hash, name to definition
-- KEYS[2]    slots      zset, name scored by the next slot (Unix ms)
-- KEYS[3]    waiting    zset, name scored by the slot that waits for the end of the last run
-- KEYS[4]    fired      hash, name to what has become of its slots
-- KEYS[5]    runs       hash, name to the history of its runs
-- KEYS[6]    pool       hash, job id to record
-- KEYS[7]    leases     zset, job id scored by the end of its lease
-- KEYS[8]    dead       zset, job id scored by the time of burial
-- ARGV[1]    bytes      how many bytes of each definition to read; -1: all
-- ARGV[2]    budget     about how many bytes of definitions to read; the first one is read in any case
-- ARGV[3..]  names      at most 1,000
--
-- Returns {'ok', now, definitions, slots, waiting, states, histories, last}: six lists with one value for each name, fewer if the budget
-- was used up. Of a history, the counters and the last entry; last is what the job that was fired last is doing: running, going (it
-- waits, or backs off), or none.
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
  histories[n] = log .. ' ' .. (ended and ended > 0 and redis.call('HGET', runs, name .. '\n' .. (ended - 1) % runs_most) or '')
  local state = state_of(states[n])
  last[n] = 'none'
  if state and going(pool, dead, state) then
    last[n] = redis.call('ZSCORE', leases, state.job) and 'running' or 'going'
  end
end
return {'ok', now, definitions, at, waits, states, histories, last}
