-- pause: stops or resumes the taking of jobs of a topic. Jobs still come in and fall due; running ones go on.
--
-- KEYS[1]  meta     hash, what an operator has set for the topic
-- ARGV[1]  paused   1 to pause, 0 to resume
-- ARGV[2]  period   ms after which it ends by itself, 0 for never
-- ARGV[3]  by       who
-- ARGV[4]  reason   why
-- ARGV[5]  channel  the control channel
-- ARGV[6]  topic    the topic's name, for the control channel
--
-- Safe to send twice. Returns {'ok', now}. Cost: O(1).
local meta = KEYS[1]
local paused, period, by, reason, channel, topic = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5], ARGV[6]

redis.call('HDEL', meta, 'paused', 'until', 'by', 'reason')
if paused == '1' then
  redis.call('HSET', meta, 'paused', now, 'by', by, 'reason', reason)
  if period > 0 then
    redis.call('HSET', meta, 'until', now + period)
  end
else
  nudge(channel, 'resume', topic, 0, '')
end
return {'ok', now}
