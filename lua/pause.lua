-- pause: pauses a topic in somebody's name, or ends that pause. While a topic has a pause, no job
-- is taken. Jobs are still enqueued and fall due, and running ones continue.
--
-- KEYS[1]  meta      hash, settings of the topic made by operators
-- KEYS[2]  receipt   string, the last call of the series and its reply
-- KEYS[3]  operator  none, never exists: a client without rights to it cannot make this call
-- ARGV[1]  number    number of this call in its series
-- ARGV[2]  verb      pause, resume (ends the pause of by) or resume all
-- ARGV[3]  by        who: everybody has at most one pause, and pausing again replaces it
-- ARGV[4]  period    ms after which the pause ends by itself, 0 for never
-- ARGV[5]  reason    why
-- ARGV[6]  most      most simultaneous pauses
-- ARGV[7]  channel   the control channel
-- ARGV[8]  topic     the topic's name, for the control channel
--
-- The field pauses holds them one after the other, each as "<since> <until, or 0> <bytes of by>
-- <bytes of reason> <by><reason>". The fields that take reads are computed from them: paused, the
-- earliest start, and until, the latest end, which is missing if a pause has no end. An expired
-- pause is dropped here.
-- Returns {'ok', now, state, before}: paused or running (the topic's new state), or too_many
-- (others have most pauses: nothing was done). before has the pauses that the call has ended or
-- replaced, in the same format.
-- Cost: O(1).
-- Uses: now receipt retold control noted
local meta, receipt, operator = KEYS[1], KEYS[2], KEYS[3]
local number, verb, by, period, reason = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local most, channel, topic = tonumber(ARGV[6]), ARGV[7], ARGV[8]

local told = replay(receipt, number)
if told then
  return retold(told)
end

local before = redis.call('HMGET', meta, 'paused', 'until', 'pauses')
local pauses, since, latest, endless, over = {}, now, 0, false, ''

local function hold(from, ending, who, why)
  pauses[#pauses + 1] = from .. ' ' .. ending .. ' ' .. #who .. ' ' .. #why .. ' ' .. who .. why
  since, latest, endless = math.min(since, from), math.max(latest, ending), endless or ending == 0
end

local list, at = before[3] or '', 1
while true do
  local begin, stop, from, ending, n, m = string.find(list, '^(%d+) (%d+) (%d+) (%d+) ', at)
  if not stop then
    break
  end
  from, ending, n, m = tonumber(from), tonumber(ending), tonumber(n), tonumber(m)
  local who = string.sub(list, stop + 1, stop + n)
  local why = string.sub(list, stop + n + 1, stop + n + m)
  at = stop + n + m + 1
  if ending == 0 or now < ending then
    if verb ~= 'resume all' and who ~= by then
      hold(from, ending, who, why)
    else
      over = over .. string.sub(list, begin, at - 1)
    end
  end
end
if verb == 'pause' then
  if #pauses >= most then
    remember(receipt, number, 'too_many ')
    return {'ok', now, 'too_many', ''}
  end
  hold(now, period > 0 and now + period or 0, by, reason)
end

redis.call('HDEL', meta, 'paused', 'until', 'pauses')
if #pauses > 0 then
  redis.call('HSET', meta, 'paused', since, 'pauses', table.concat(pauses))
  if not endless then
    redis.call('HSET', meta, 'until', latest)
  end
end
-- Servers that rest until a known end must receive an earlier one.
if before[1] and (#pauses == 0
  or not endless and (not before[2] or latest < tonumber(before[2]))) then
  nudge(channel, 'resume', topic, 0, '')
end
if before[1] or before[3] or #pauses > 0 then
  note_change(meta)
end
local state = #pauses > 0 and 'paused' or 'running'
remember(receipt, number, state .. ' ' .. over)
return {'ok', now, state, over}
