-- schedule_set: creates a schedule, or replaces it. An identical schedule is left unchanged.
--
-- KEYS[1]  schedules   hash, schedule to definition
-- KEYS[2]  slots       zset, schedule scored by its next slot (Unix ms)
-- KEYS[3]  waiting     zset, schedule scored by the slot that waits for its last run to finish
-- KEYS[4]  fired       hash, schedule to the state of its slots
-- KEYS[5]  runs        hash, schedule to the history of its runs
-- KEYS[6]  receipt     string, the last call of the series and its reply
-- ARGV[1]  number      number of this call in its series
-- ARGV[2]  name        the schedule
-- ARGV[3]  definition  nonce, then the part that is compared with the existing definition
-- ARGV[4]  nonce       that of the definition that the caller has read, empty if there was none
-- ARGV[5]  slot        its first slot, 0 if a server must compute it
-- ARGV[6]  tick        ms, how far ahead timers look without a wake-up
-- ARGV[7]  channel     the control channel
-- ARGV[8]  topic       the topic's name, for the control channel
--
-- Counts, history and a pause stay as they are. A waiting slot is skipped, because it belonged to
-- the old definition.
-- Returns {'ok', now, what}: new, replaced, same, or changed (by another caller: nothing was done).
-- Cost: O(log N).
-- Uses: now receipt control schedule
local schedules, slots, waiting = KEYS[1], KEYS[2], KEYS[3]
local fired, runs, receipt = KEYS[4], KEYS[5], KEYS[6]
local number, name, definition, nonce, slot = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local tick, channel, topic = tonumber(ARGV[6]), ARGV[7], ARGV[8]

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local what = 'new'
local old = redis.call('HGET', schedules, name)
if old then
  what = string.sub(old, 9) == string.sub(definition, 9) and 'same' or 'replaced'
  local state = state_of(redis.call('HGET', fired, name))
  local placed = state and (state.paused or state.ended or redis.call('ZSCORE', slots, name)
    or redis.call('ZSCORE', waiting, name))
  if not placed then
    what = 'replaced' -- its place or its state was lost, by an eviction or a manual edit
  end
end
if what ~= 'same' and hex(old or '') ~= nonce then
  what = 'changed'
end
if what == 'new' or what == 'replaced' then
  -- A wrong type causes an error before the first write.
  local state = state_of(redis.call('HGET', fired, name))
    or {fired = 0, skipped = 0, missed = 0, made = now}
  local log = redis.call('HGET', runs, name)
  local waits = redis.call('ZSCORE', waiting, name)

  -- A slot that is due and not fired yet is still fired, with the new definition. Otherwise a slot
  -- that has passed, or that the old definition has fired, does not count. Then a server must
  -- compute the next one.
  local present, fired_last = redis.call('ZSCORE', slots, name), 0
  if state.slot and state.slot < now + 60000 then
    fired_last = state.slot -- otherwise Redis's clock has been set back
  end
  state.from = math.max(now, fired_last)
  if present and tonumber(present) > 0 and tonumber(present) <= now then
    slot = present
  elseif tonumber(slot) <= state.from then
    slot = '0'
  end
  state.nonce, state.since, state.changed = hex(definition), state.fired, now
  state.ended, state.catching = nil, nil
  if not state.paused then
    redis.call('ZADD', slots, slot, name)
  end
  if waits then
    state.skipped = state.skipped + 1
    redis.call('ZREM', waiting, name)
  end
  if not log then
    redis.call('HSET', runs, name, '0 0')
  end
  redis.call('HSET', fired, name, cjson.encode(state))
  redis.call('HSET', schedules, name, definition)
  if slot - now <= tick then
    nudge(channel, 'wake', topic, 0, '')
  end
end
remember(receipt, number, what)
return {'ok', now, what}
