-- reschedule: gives a scheduled or ready job another due time.
--
-- KEYS[1]  pool     hash, job ID to record
-- KEYS[2]  bucket   zset, job ID scored by due time (Unix ms)
-- KEYS[3]  ready    list of job IDs, next one at the head
-- KEYS[4]  leases   zset, job ID scored by the end of its lease
-- KEYS[5]  dead     zset, job ID scored by the time of burial
-- KEYS[6]  moved    hash, job ID to its current due time, if it differs from the record's
-- KEYS[7]  receipt  string, the last call of the series and its reply
-- ARGV[1]  number   number of this call in its series
-- ARGV[2]  id       the job
-- ARGV[3]  due      Unix ms, or + and a delay in ms
-- ARGV[4]  tick     ms, how far ahead timers look without a wake-up
-- ARGV[5]  channel  the control channel
-- ARGV[6]  topic    the topic's name, for the control channel
-- ARGV[7]  nonce    of the record that expires belongs to; empty: the caller does not know whether
--                   the job expires
-- ARGV[8]  expires  Unix ms, when the job expires
--
-- Returns {'ok', now, state}. The state is the one before: scheduled or ready (moved), running,
-- dead or none (left alone), or beyond (left alone: it expires before that time). It is expiring,
-- with the part of the record before the payload, if nothing was done because the job can expire
-- and the caller sent another nonce. The caller then calls again with the values that it reads
-- there.
-- Cost: O(log N).
-- Uses: now receipt unready control
local pool, bucket, ready, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local dead, moved, receipt = KEYS[5], KEYS[6], KEYS[7]
local number, id, due, tick = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local channel, topic, nonce, expires = ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local state = 'ready'
local record = redis.call('HGET', pool, id)
if not record then
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
  -- A revived job does not expire.
  if string.sub(tally, -1) == '0' and (string.byte(record, 10) or 0) % 8 >= 4 then
    if string.sub(record, 1, 8) ~= nonce then
      return {'ok', now, 'expiring', string.sub(record, 1, 49152)}
    end
    state = due >= expires and 'beyond' or state
  end
  if state ~= 'beyond' then
    redis.call('HSET', moved, id, due .. ' reschedule ' .. tally)
  end
end
if (state == 'scheduled' or state == 'ready') and due > now then
  local head = redis.call('ZRANGE', bucket, 0, 0, 'WITHSCORES')
  redis.call('ZADD', bucket, due, id)
  if due - now <= tick and (not head[2] or tonumber(head[2]) > due) then
    nudge(channel, 'wake', topic, 0, '')
  end
  if state == 'ready' then
    unready(ready, id)
  end
elseif state == 'scheduled' then
  redis.call('RPUSH', ready, id)
  redis.call('ZREM', bucket, id)
end
remember(receipt, number, state)
return {'ok', now, state}
