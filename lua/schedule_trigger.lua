-- schedule_trigger: stores a job of a schedule in addition to those of its slots.
--
-- KEYS[1]  fired    hash, schedule to the state of its slots
-- KEYS[2]  pool     hash, job ID to record
-- KEYS[3]  bucket   zset, job ID scored by due time (Unix ms)
-- KEYS[4]  ready    list of job IDs, next one at the head
-- KEYS[5]  stats    hash, counter to number
-- KEYS[6]  sizes    hash, the size of the largest record
-- KEYS[7]  receipt  string, the last call of the series and its reply
-- KEYS[8]  idle     zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[9]  turn     zset, key of waiting jobs scored by its pass
-- KEYS[10]  lane     zset, place and ID of every ready job that has a key
-- KEYS[11]  keyed    hash, job ID to its place in a lane
-- ARGV[1]  number   number of this call in its series
-- ARGV[2]  name     the schedule
-- ARGV[3]  nonce    that of the definition from which the job was made
-- ARGV[4]  head     of the job's record
-- ARGV[5]  tail     of the job's record
-- ARGV[6]  delay    ms until it is due
-- ARGV[7]  tick     ms, how far ahead timers look without a wake-up
-- ARGV[8]  channel  the control channel
-- ARGV[9]  topic    the topic's name, for the control channel
--
-- The ID is the name, an exclamation mark and the time in Unix ms. After the first one of a ms, it
-- continues with a dot and a number, from 1.
-- Returns {'ok', now, id}. In place of the ID it returns changed (by another caller: nothing was
-- done), or none if there is no such schedule.
-- Cost: O(log N).
-- Uses: now receipt stats sizes control ring schedule place rouse key
local fired, pool, bucket, ready = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local stats, sizes, receipt, idle = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local turn, lane, keyed = KEYS[9], KEYS[10], KEYS[11]
local number, name, nonce, head, tail = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local delay, tick, channel, topic = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], ARGV[9]

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local state = state_of(redis.call('HGET', fired, name))
local answer = 'none'
if state and state.nonce ~= nonce then
  answer = 'changed'
elseif state then
  -- The state counts the jobs of a ms, so the first number is free. It is not if the schedule was
  -- created again or the clock was set back.
  local more = state.trigger == now and (state.more or 0) + 1 or 0
  local function id()
    local suffix = more > 0 and string.format('.%d', more) or ''
    return name .. '!' .. string.format('%.0f', now) .. suffix
  end
  while redis.call('HEXISTS', pool, id()) == 1 do
    more = more + 1
  end
  answer = id()
  state.trigger, state.more = now, more
  redis.call('HSET', fired, name, cjson.encode(state))
  local record = head .. '\173' .. string.format('%013.0f', now) .. tail
  sized(sizes, #record)
  if delay > 0 then
    if delay <= tick then
      nudge(channel, 'wake', topic, 0, '')
    end
    redis.call('ZADD', bucket, now + delay, answer)
  end
  local has_lane = to_lane(answer, record, now + math.max(0, delay))
  if has_lane then
    enlane(turn, lane, keyed, sizes, ready)
  elseif delay <= 0 then
    redis.call('RPUSH', ready, answer)
  end
  redis.call('HSET', pool, answer, record)
  count(stats, 'enqueued', 1)
  if delay <= 0 then
    ring(idle, channel, topic, 1)
  end
end
remember(receipt, number, answer)
return {'ok', now, answer}
