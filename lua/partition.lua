-- partition: divides a topic into partitions: sets the map of its home.
--
-- KEYS[1]  parts     hash, the map of the partitions of the topic
-- KEYS[2]  meta      hash, settings of the topic made by operators
-- KEYS[3]  receipt   string, the last call of the series and its reply
-- KEYS[4]  operator  none, never exists: a client without rights to it cannot make this call
-- ARGV[1]  number    number of this call in its series
-- ARGV[2]  expected  the map as the caller has read it, '' if there was none
-- ARGV[3]  map       the new map: for each generation its number, a colon, how many partitions it
--                    has, and k if they are by key, with a space between two, the oldest first
-- ARGV[4]  changes   the field changes of meta as the caller has read it, 0 if there was none,
--                    before it copied the settings of the topic to new partitions. '': any
-- ARGV[5]  channel   the control channel
-- ARGV[6]  topic     the topic's name, for the control channel
-- ARGV[7]  verb      set. Or claim: the map stays as it is, and last becomes one more than it is
--                    and than the floor
-- ARGV[8]  floor     a number. With set, last must be that: nobody has claimed a number since the
--                    caller has. '': any
--
-- Each attempt to divide a topic claims a number, so no two have partitions of the same names: what
-- one leaves behind that has failed, no other uses.
--
-- Returns {'ok', now, answer, map, changes, last}. answer is made, or other if the map or last is
-- not the expected one, or changed if the settings have changed: then nothing was done. map,
-- changes and last are as they are now. last is the highest number that a generation has had, or
-- that was claimed for one.
-- Cost: O(1).
-- Uses: now receipt control
local parts, meta, receipt, operator = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local number, expected, map, changes = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local channel, topic = ARGV[5], ARGV[6]
local verb, floor = ARGV[7], tonumber(ARGV[8])

local told = replay(receipt, number)
if told then
  local answer, before, last, had = string.match(told, '^(%a+) (%S+) (%d+) (.*)$')
  return {'ok', now, answer, had, before, last}
end
local known = redis.call('HMGET', parts, 'map', 'last')
local had, last = known[1] or '', tonumber(known[2] or nil) or 0
local settings = redis.call('HGET', meta, 'changes') or ''
local answer = 'made'
if had ~= expected or verb == 'set' and floor and floor ~= last then
  answer = 'other'
elseif changes ~= '' and changes ~= (settings ~= '' and settings or '0') then
  answer = 'changed'
elseif verb == 'claim' then
  last = math.max(last, floor or 0) + 1
  redis.call('HDEL', parts, '') -- after a deletion, the script can write at maxmemory
  redis.call('HSET', parts, 'last', string.format('%.0f', last))
  if settings == '' then
    redis.call('HSET', meta, 'changes', 0) -- from now on they are counted
    settings = '0'
  end
else
  for n in string.gmatch(map, '(%d+):') do
    last = math.max(last, tonumber(n))
  end
  redis.call('HDEL', parts, '') -- after a deletion, the script can write at maxmemory
  redis.call('HSET', parts, 'map', map, 'last', string.format('%.0f', last))
  nudge(channel, 'parts', topic, 0, '')
  had = map
end
last, settings = string.format('%.0f', last), settings ~= '' and settings or '0'
remember(receipt, number, table.concat({answer, settings, last, had}, ' '))
return {'ok', now, answer, had, settings, last}
