-- part_share: gives a place its share of the limits of a topic that has partitions, unless its
-- limits have been set since the caller has read them.
--
-- KEYS[1]  meta        hash, settings of the topic made by operators
-- KEYS[2]  sizes       hash, the size of the largest record
-- ARGV[1]  had_flow    the field flow of meta as the caller has read it, '' if there was none
-- ARGV[2]  had_shared  the field shared, likewise
-- ARGV[3]  flow        the share (see limits)
-- ARGV[4]  shared      the limits of all places together; '': the field stays
-- ARGV[5]  channel     the control channel
-- ARGV[6]  topic       the topic's name, for the control channel
--
-- A server calls this, which may not call limits. Safe to send twice.
-- Returns {'ok', now, done}: 1 if the place has the share, or 0 if its limits are others and
-- nothing was done.
-- Cost: O(1).
-- Uses: now control
local meta, sizes = KEYS[1], KEYS[2]
local had_flow, had_shared, flow, shared = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local channel, topic = ARGV[5], ARGV[6]

local has = redis.call('HMGET', meta, 'flow', 'shared')
redis.call('HLEN', sizes) -- a wrong type must cause an error before anything is written
if has[1] == flow and (shared == '' or has[2] == shared) then
  return {'ok', now, 1}
elseif (has[1] or '') ~= had_flow or (has[2] or '') ~= had_shared then
  return {'ok', now, 0}
end
redis.call('HDEL', meta, 'promise') -- after a deletion, the script can write at maxmemory
if string.find(flow, '[1-9]') then -- otherwise the places of cancelled jobs are not kept
  redis.call('HSET', sizes, 'limits', 1)
end
redis.call('HSET', meta, 'flow', flow)
if shared ~= '' then
  redis.call('HSET', meta, 'shared', shared)
end
nudge(channel, 'resume', topic, 0, '')
return {'ok', now, 1}
