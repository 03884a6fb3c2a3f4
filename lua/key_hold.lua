-- key_hold: keeps takes away from the jobs of a key for some time, or ends that.
--
-- KEYS[1]  held      zset, key scored by the end of its hold (Unix ms)
-- KEYS[2]  turn      zset, key of waiting jobs scored by its pass
-- KEYS[3]  lane      zset, place and ID of every ready job that has a key
-- KEYS[4]  ready     list of job IDs, next one at the head
-- KEYS[5]  idle      zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[6]  receipt   string, the last call of the series and its reply
-- KEYS[7]  operator  none, never exists: a client without rights to it cannot make this call
-- KEYS[8]  meta      hash, settings of the topic made by operators
-- ARGV[1]  number    number of this call in its series
-- ARGV[2]  key       the key
-- ARGV[3]  period    ms for which the key is held; -1: it is paused, with the end 9999999999999;
--                    0: the hold ends
-- ARGV[4]  most      most keys that can be held
-- ARGV[5]  channel   the control channel
-- ARGV[6]  topic     the topic's name, for the control channel
--
-- A hold takes the turn of the key. A job that becomes ready can give the key a turn again. Then
-- the take that finds it takes it again. At the end of the hold, promote gives the key a turn.
-- Returns {'ok', now, state, before}: held, free, or full if so many other keys are held. Then
-- nothing has changed. before is the end of the hold that there was, or '' if there was none.
-- Cost: O(log N).
-- Uses: now receipt retold control noted ring place rouse hold_key free_keys
local held, turn, lane, ready, idle = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local receipt, operator, meta = KEYS[6], KEYS[7], KEYS[8]
local number, key, period, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local channel, topic = ARGV[5], ARGV[6]

local told = replay(receipt, number)
if told then
  return retold(told)
end
local state, before = 'held', redis.call('ZSCORE', held, key) or ''
if period == 0 then
  state = 'free'
  if before ~= '' then
    local jobs = free_keys(held, turn, lane, {key})
    if jobs > 0 then
      rouse(ready, jobs)
      ring(idle, channel, topic, jobs)
    end
  end
elseif redis.call('ZCOUNT', held, string.format('(%.0f', now), '+inf') >= most
  and before == '' then
  state = 'full'
else
  local head = redis.call('ZRANGE', held, 0, 0, 'WITHSCORES')
  hold_key(held, turn, key, period < 0 and 9999999999999 or now + period)
  if period > 0 and (not head[2] or tonumber(head[2]) > now + period) then
    nudge(channel, 'wake', topic, 0, '') -- the timers have to know the end
  end
end
if state == 'held' or state == 'free' and before ~= '' then
  note_change(meta)
end
remember(receipt, number, state .. ' ' .. before)
return {'ok', now, state, before}
