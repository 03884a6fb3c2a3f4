-- hold: keeps takes away from a topic for some time, or ends that.
--
-- KEYS[1]  meta      hash, settings of the topic made by operators
-- KEYS[2]  receipt   string, the last call of the series and its reply
-- KEYS[3]  operator  none, never exists: a client without rights to it cannot make this call
-- ARGV[1]  number    number of this call in its series
-- ARGV[2]  period    ms for which the topic is held; 0: the hold ends
-- ARGV[3]  by        who
-- ARGV[4]  reason    why
-- ARGV[5]  channel   the control channel
-- ARGV[6]  topic     the topic's name, for the control channel
--
-- A hold is not a pause: handlers make it too (see give_back), and it only grows. The fields of
-- meta are hold, its end in Unix ms, holdby and holdwhy.
-- Returns {'ok', now, state, before}: held or free, and the hold that there was, as pause writes a
-- pause, with 0 as its beginning. before is empty if there was none.
-- Cost: O(1).
-- Uses: now receipt retold control noted hold
local meta, receipt, operator = KEYS[1], KEYS[2], KEYS[3]
local number, period, by, reason = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local channel, topic = ARGV[5], ARGV[6]

local told = replay(receipt, number)
if told then
  return retold(told)
end
local state, before = 'held', ''
local was = redis.call('HMGET', meta, 'hold', 'holdby', 'holdwhy', 'ahead')
if was[1] == was[4] then -- that of a take: see take_rate
  was = {}
end
local ending, who, why = tonumber(was[1] or nil) or 0, was[2] or '', was[3] or ''
if ending > now then
  before = string.format('0 %.0f %d %d ', ending, #who, #why) .. who .. why
end
if period > 0 then
  local failed = hold(meta, now + period, by, reason)
  if failed then -- as at maxmemory
    return failed
  end
  note_change(meta)
else
  state = 'free'
  if was[1] and redis.call('HDEL', meta, 'hold', 'holdby', 'holdwhy') > 0 then
    note_change(meta)
    nudge(channel, 'resume', topic, 0, '')
  end
end
remember(receipt, number, state .. ' ' .. before)
return {'ok', now, state, before}
