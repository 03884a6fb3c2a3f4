-- schedule_pause: pauses one schedule, or resumes it. What comes while it is paused is neither missed nor made up for.
--
-- KEYS[1]  slots     zset, name scored by the next slot (Unix ms)
-- KEYS[2]  waiting   zset, name scored by the slot that waits for the end of the last run
-- KEYS[3]  fired     hash, name to what has become of its slots
-- KEYS[4]  receipt   string, the last call of the series and its reply
-- KEYS[5]  operator  none, it is never there: who lacks the right to it cannot make this call
-- ARGV[1]  number    number of this call in its series
-- ARGV[2]  name      the schedule
-- ARGV[3]  verb      pause or resume
-- ARGV[4]  nonce     resume: that of the definition which the slot was worked out by
-- ARGV[5]  slot      resume: the next slot, 0 if a server is to work that out, empty if there is none
-- ARGV[6]  tick      ms, how far ahead the timers look by themselves
-- ARGV[7]  channel   the control channel
-- ARGV[8]  topic     the topic's name, for the control channel
--
-- Returns {'ok', now, state}: paused or active (how it is now), changed (by somebody else: nothing was done), or none when there is no such
-- schedule. Cost: O(log N).
-- Uses: now receipt control schedule
local slots, waiting, fired, receipt, operator = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local number, name, verb, nonce, slot = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local tick, channel, topic = tonumber(ARGV[6]), ARGV[7], ARGV[8]

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local state = state_of(redis.call('HGET', fired, name))
local answer = 'none'
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
    -- No slot counts that is over, or that was fired before the pause: then a server is to work out the next one.
    local fired_last = state.slot and state.slot < now + 60000 and state.slot or 0 -- else Redis's clock has been set back
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
remember(receipt, number, answer)
return {'ok', now, answer}
