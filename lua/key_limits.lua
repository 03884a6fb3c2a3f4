-- key_limits: sets the limits of a key.
--
-- KEYS[1]   rules     hash, key to what is set for it
-- KEYS[2]   receipt   string, the last call of the series and its reply
-- KEYS[3]   operator  none, never exists: a client without rights to it cannot make this call
-- KEYS[4]   meta      hash, settings of the topic made by operators
-- KEYS[5]   holders   zset, key and ID of every running job whose key has a limit of running jobs
-- KEYS[6]   leases    zset, job ID scored by the end of its lease
-- KEYS[7]   keyed     hash, job ID to its place in a lane
-- KEYS[8]   parked    zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[9]   turn      zset, key of waiting jobs scored by its pass
-- KEYS[10]  lane      zset, place and ID of every ready job that has a key
-- KEYS[11]  ready     list of job IDs, next one at the head
-- KEYS[12]  idle      zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[13]  sizes     hash, the size of the largest record
-- ARGV[1]   number    number of this call in its series
-- ARGV[2]   key       the key
-- ARGV[3]   rule      its limits: "<weight>", its share of the starts, or the weight and the six
--                     numbers of a flow for this key (see limits). Empty: the defaults, and nothing
--                     is kept
-- ARGV[4]   most      most keys that can have limits
-- ARGV[5]   channel   the control channel
-- ARGV[6]   topic     the topic's name, for the control channel
--
-- The field limited of meta is the number of keys that have more than a weight. Running jobs are
-- not interrupted. Up to 1,000 of the topic are looked at. Those of the key are counted, if they
-- were not yet. A key that waits because of its limits gets a turn. The next take parks it again if
-- they are still reached. Without any limits of keys, holders only keeps the stragglers that count
-- for the topic.
--
-- Returns {'ok', now, answer, before}: set, or full if so many other keys have limits. Then nothing
-- has changed. before is the rule until now, or '' if there was none.
-- Cost: O(log N).
-- Uses: now receipt retold control noted place key_rule holder count_in uncount ring rouse
-- Uses: free_keys
local rules, receipt, operator = KEYS[1], KEYS[2], KEYS[3]
local meta, holders, leases, keyed = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local parked, turn, lane, ready, idle = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local sizes = KEYS[13]
local number, key, rule, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local channel, topic = ARGV[5], ARGV[6]

local told = replay(receipt, number)
if told then
  return retold(told)
end
local answer = 'set'
local before = redis.call('HGET', rules, key)
if rule == '' then
  redis.call('HDEL', rules, key)
elseif not before and redis.call('HLEN', rules) >= most then
  answer = 'full'
else
  redis.call('HSET', rules, key, rule)
end
if answer == 'set' then
  if before or rule ~= '' then
    note_change(meta)
  end
  local function limits(text)
    return string.find(text or '', ' ', 1, true) and 1 or 0
  end
  local more = limits(rule) - limits(before)
  if more ~= 0 then
    local n = tonumber(redis.call('HGET', meta, 'limited') or nil) or 0 -- it can be damaged
    redis.call('HSET', meta, 'limited', string.format('%.0f', n + more))
    local flow = redis.call('HGET', meta, 'flow') or ''
    if n + more < 1 and flow_of(flow) == 0 then
      uncount(holders)
    end
    if n + more > 0 or string.find(flow, '[1-9]') then
      redis.call('HSET', sizes, 'limits', 1) -- see limits
    else
      redis.call('HDEL', sizes, 'limits')
    end
    nudge(channel, 'resume', topic, 0, '')
  end
  local _, running = rule_of(rule, 0, 0, 0)
  if running > 0 then
    count_in(holders, leases, keyed, key)
  end
  local jobs = redis.call('ZSCORE', parked, key) and free_keys(parked, turn, lane, {key}, true)
    or 0
  if jobs > 0 then
    rouse(ready, jobs)
    ring(idle, channel, topic, jobs)
  end
end
before = before or ''
remember(receipt, number, answer .. ' ' .. before)
return {'ok', now, answer, before}
