-- limits: sets the limits of a topic. take judges them: the parts take_bounds (of the topic),
-- take_rations (of keys) and take_rate of the prelude.
--
-- KEYS[1]  meta      hash, settings of the topic made by operators
-- KEYS[2]  receipt   string, the last call of the series and its reply
-- KEYS[3]  operator  none, never exists: a client without rights to it cannot make this call
-- KEYS[4]  holders   zset, key and ID of every running job whose key has a limit of running jobs
-- KEYS[5]  leases    zset, job ID scored by the end of its lease
-- KEYS[6]  keyed     hash, job ID to its place in a lane
-- KEYS[7]  sizes     hash, the size of the largest record
-- ARGV[1]  number    number of this call in its series
-- ARGV[2]  flow      the limits: "<running> <emit> <burst> <starts> <period> <strict>". running is
--                    the most running jobs, emit the time of one start in µs, and burst how many
--                    starts can be made at once; 0 is no limit. The others are what the caller has
--                    given: starts in a period in µs, and strict as 1 or 0. With limits of each
--                    key, the same six numbers follow for them. If the jobs of each key run in
--                    their order, two more follow: 1, and 1 if a dead job blocks its key
-- ARGV[3]  channel   the control channel
-- ARGV[4]  topic     the topic's name, for the control channel
-- ARGV[5]  shared    if the topic is a place of one that has partitions, and flow its share: the
--                    limits of all places together. Otherwise ''
-- ARGV[6]  verb      set. Or share: the number of places has changed, and nothing is done unless
--                    the limits of all places are as they were, or the topic has none; nor if the
--                    share is the same
--
-- The field limits of sizes says that the topic has limits, to scripts that may not read meta: they
-- keep the place of a running job that they cancel or replace, until its handler has returned.
--
-- Without limits, flow is kept as zeros. So the DefaultLimits of a server, which apply if there is
-- no flow, do not come back. Running jobs are not interrupted. Up to 1,000 of them are counted for
-- their keys, if they were not yet.
--
-- Where the jobs of each key run in their order, one of them runs at a time. A job that fails gets
-- a place before all others of its key and is in blockers until it is due. So is a dead one that
-- blocks its key, until it is revived, cancelled or deleted. Take serves no job that comes after
-- it.
-- The field shared of meta keeps shared. The field changes counts what operators have set: see
-- partition.
-- Returns {'ok', now, before}: the limits until now, of all places if flow was a share, or '' if
-- there were none.
-- Cost: O(log N).
-- Uses: now receipt control noted place key_rule holder count_in uncount
local meta, receipt, operator = KEYS[1], KEYS[2], KEYS[3]
local holders, leases, keyed, sizes = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local number, flow, channel, topic = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local shared, verb = ARGV[5], ARGV[6]

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end
local had = redis.call('HMGET', meta, 'shared', 'flow')
local before = had[1] or had[2] or ''
shared = shared ~= '' and shared or nil
local same = had[2] == flow and (had[1] or nil) == shared
if verb == 'share' and (same or before ~= '' and before ~= (shared or flow)) then
  remember(receipt, number, before)
  return {'ok', now, before}
end
local own = (tonumber(redis.call('HGET', meta, 'limited') or nil) or 0) > 0
if string.find(flow, '[1-9]') or own then
  redis.call('HSET', sizes, 'limits', 1)
else
  redis.call('HDEL', sizes, 'limits')
end
redis.call('HSET', meta, 'flow', flow)
redis.call('HDEL', meta, 'promise', 'shared')
if shared then
  redis.call('HSET', meta, 'shared', shared)
end
if verb ~= 'share' then
  note_change(meta)
end
if flow_of(flow) > 0 then
  count_in(holders, leases, keyed, nil)
elseif not own then
  uncount(holders)
end
nudge(channel, 'resume', topic, 0, '')
remember(receipt, number, before)
return {'ok', now, before}
