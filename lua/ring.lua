-- ring: passes a ring on. A server calls this when it is woken and cannot start a job, and when it
-- stops.
--
-- KEYS[1]  ready    list of job IDs, next one at the head
-- KEYS[2]  handoff  list of job IDs on the way from a server's wait to its take
-- KEYS[3]  idle     zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[4]  meta     hash, settings of the topic made by operators
-- KEYS[5]  lane     zset, place and ID of every ready job that has a key
-- ARGV[1]  channel  the control channel
-- ARGV[2]  topic    the topic's name, for the control channel
-- ARGV[3]  name     under which the server waits
-- ARGV[4]  leave    1: the server stops. Its wait ends, and it may have been rung many times
--
-- If the topic is not paused and jobs are ready, waiting servers are woken: one, or with leave one
-- for each job, at most 100. Rings that arrive after a call with leave can be ignored. Without
-- leave the name is not removed. The ring has removed it, and a take that was sent later and
-- arrived earlier may have added it again. Safe to send twice.
-- Returns {'ok', now}.
-- Cost: O(log N).
-- Uses: now paused control ring
local ready, handoff, idle, meta, lane = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local channel, topic, name, leave = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if leave == '1' then
  redis.call('ZREM', idle, name)
end
local jobs = redis.call('LLEN', ready) + redis.call('LLEN', handoff) + redis.call('ZCARD', lane)
if jobs > 0 and not paused(redis.call('HMGET', meta, 'paused', 'until')) then
  ring(idle, channel, topic, leave == '1' and jobs or 1)
end
return {'ok', now}
