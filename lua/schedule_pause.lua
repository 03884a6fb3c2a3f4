-- schedule_pause: pauses one schedule, or resumes it. Slots during a pause are neither missed nor
-- made up for.
--
-- KEYS[1]  slots     zset, schedule scored by its next slot (Unix ms)
-- KEYS[2]  waiting   zset, schedule scored by the slot that waits for its last run to finish
-- KEYS[3]  fired     hash, schedule to the state of its slots
-- KEYS[4]  receipt   string, the last call of the series and its reply
-- KEYS[5]  operator  none, never exists: a client without rights to it cannot make this call
-- ARGV[1]  number    number of this call in its series
-- ARGV[2]  name      the schedule
-- ARGV[3]  verb      pause or resume
-- ARGV[4]  nonce     resume: that of the definition from which the slot was computed
-- ARGV[5]  slot      resume: the next slot, 0 if a server must compute it, empty if there is none
-- ARGV[6]  tick      ms, how far ahead timers look without a wake-up
-- ARGV[7]  channel   the control channel
-- ARGV[8]  topic     the topic's name, for the control channel
--
-- Returns {'ok', now, state, before}: paused or active (the new state), changed (by another caller:
-- nothing was done), or none if there is no such schedule. before is the time since which it was
-- paused (Unix ms), or '' if it was not.
-- Cost: O(log N).
-- Uses: now receipt retold control schedule
local slots, waiting, fired, receipt, operator = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local number, name, verb, nonce, slot = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local tick, channel, topic = tonumber(ARGV[6]), ARGV[7], ARGV[8]

local told = replay(receipt, number)
if told then
  return retold(told)
end

local state = state_of(redis.call('HGET', fired, name))
local answer = 'none'
local before = state and state.paused and string.format('%.0f', state.paused) or ''
if state and verb == 'pause' then
  answer = 'paused'
  if not state.paused then
    state.paused, state.catching = now, nil
    if redis.call('ZREM', waiting, name) == 1 then
      state.skipped = state.skipped + 1
    end
    redis.call('ZREM', slots, name)
    redis.call('HSET', fired, name, cjson.encode(state))
  end
elseif state and state.nonce ~= nonce then
  answer = 'changed'
elseif state then
  answer = 'active'
  if state.paused then
    -- A slot that has passed, or that was fired before the pause, does not count. Then a server
    -- must compute the next one.
    local fired_last = state.slot and state.slot < now + 60000 and state.slot or 0
    state.paused, state.from = nil, math.max(now, fired_last)
    if slot ~= '' and tonumber(slot) <= state.from then
      slot = '0'
    end
    if slot == '' or state.ended then
      state.ended = true
    else
      redis.call('ZADD', slots, slot, name)
      if slot - now <= tick then
        nudge(channel, 'wake', topic, 0, '')
      end
    end
    redis.call('HSET', fired, name, cjson.encode(state))
  end
end
remember(receipt, number, answer .. ' ' .. before)
return {'ok', now, answer, before}
