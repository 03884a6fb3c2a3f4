-- reschedule: gives a job that waits another due time.
--
-- KEYS[1]  pool     hash, job id to record
-- KEYS[2]  bucket   zset, job id scored by due time (Unix ms)
-- KEYS[3]  ready    list of job ids, next one at the head
-- KEYS[4]  leases   zset, job id scored by the end of its lease
-- KEYS[5]  dead     zset, job id scored by the time of burial
-- KEYS[6]  moved    hash, job id to its present due time, if that is not the record's
-- KEYS[7]  receipt  string, the last call of the lane and its reply
-- ARGV[1]  number   number of this call in its lane
-- ARGV[2]  id       the job
-- ARGV[3]  due      Unix ms, or + and a delay in ms
-- ARGV[4]  tick     ms, how far ahead the timers look by themselves
-- ARGV[5]  channel  the control channel
-- ARGV[6]  topic    the topic's name, for the control channel
--
-- Returns {'ok', now, state}: the state before: scheduled or ready (moved), running, dead or none (left alone).
-- Cost: O(log N).
local pool, bucket, ready, leases, dead, moved, receipt = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local number, id, due, tick, channel, topic = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local state = 'ready'
if redis.call('HEXISTS', pool, id) == 0 then
  state = 'none'
elseif redis.call('ZSCORE', leases, id) then
  state = 'running'
elseif redis.call('ZSCORE', dead, id) then
  state = 'dead'
elseif redis.call('ZSCORE', bucket, id) then
  state = 'scheduled'
end

if state == 'scheduled' or state == 'ready' then
  if string.byte(due) == 43 then
    due = now + due -- Lua reads "+5" as 5
  else
    due = math.max(tonumber(due), now)
  end
  local before = redis.call('HGET', moved, id)
  local tally = string.match(before or '', '%d+ %d+ [01]$') or '0 0 0'
  redis.call('HSET', moved, id, due .. ' reschedule ' .. tally)
  if due > now then
    local head = redis.call('ZRANGE', bucket, 0, 0, 'WITHSCORES')
    redis.call('ZADD', bucket, due, id)
    if due - now <= tick and (not head[2] or tonumber(head[2]) > due) then
      nudge(channel, 'wake', topic, 0, '')
    end
  elseif state == 'scheduled' then
    redis.call('RPUSH', ready, id)
    redis.call('ZREM', bucket, id)
  end
end
remember(receipt, number, state)
return {'ok', now, state}
