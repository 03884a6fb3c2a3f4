-- part_retire: takes a generation of partitions from the map of a topic, when all its places are
-- closed and empty for a while.
--
-- KEYS[1]  parts       hash, the map of the partitions of the topic
-- KEYS[2]  receipt     string, the last call of the series and its reply
-- KEYS[3]  stats       hash, counter to number
-- ARGV[1]  number      number of this call in its series
-- ARGV[2]  expected    the map that the caller knows
-- ARGV[3]  generation  the number of the generation
-- ARGV[4]  verdict     1 if the caller has seen all its places closed and empty, and otherwise 0
-- ARGV[5]  ms          for how long they must have been so
-- ARGV[6]  channel     the control channel
-- ARGV[7]  topic       the topic's name, for the control channel
-- ARGV[8]  seal        the seal that all its places have, or nothing
-- ARGV[9]  sums        name and number of each counter of all its places together, with spaces
--                      between them, but nothing if it is the home
--
-- The generation leaves the map if it was seen so in two calls with the same seal, as many ms apart
-- at least, and in all between. The caller gives all places a new seal with part_close, if they do
-- not have the same one, and they must have been closed then. Redis loses what was written last: a
-- place that has lost its closing has lost its seal. So a place that has the seal in the second
-- call was closed all the time, whoever closes places in between. A place that loses its seal only
-- after the second call has lost what was older than so many ms.
--
-- When the generation leaves the map, its counters are added to those of the home, in this script:
-- so that is done once, and neither is lost without the other. The last generation stays.
--
-- If the map is not the expected one, nothing is done; but if its last generation has a lower
-- number than that of the expected one, Redis has lost the latest map, as in a failover, and the
-- expected one takes its place. The field past keeps the generations that have left the map, for 30
-- days and at most 100: their history is read, and who sends a call again must ask the same places.
-- Returns {'ok', now, map}: the map now.
-- Cost: O(counters).
-- Uses: now receipt control
local parts, receipt, stats = KEYS[1], KEYS[2], KEYS[3]
local number, expected, generation = ARGV[1], ARGV[2], ARGV[3]
local verdict, ms, channel, topic = ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7]
local seal, sums = ARGV[8], ARGV[9]

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

-- last_of returns the number of the last generation of a map.
local function last_of(map)
  return tonumber(string.match(map, '(%d+):%d+k?$') or nil) or -1
end

-- without returns a map without the generations of which goes is true, and those.
local function without(map, goes)
  local rest, gone = {}, {}
  for one in string.gmatch(map, '%S+') do
    local list = goes(string.match(one, '^%d+')) and gone or rest
    list[#list + 1] = one
  end
  return table.concat(rest, ' '), gone
end

local seen, sealed = 'empty:' .. generation, 'seal:' .. generation
local known = redis.call('HMGET', parts, 'map', 'last', seen, 'past', sealed)
redis.call('HLEN', stats) -- a wrong type must cause an error before anything is written
local before, since, past = known[1] or '', tonumber(known[3] or nil), known[4] or ''
local map, last, gone = before, last_of(before), {}
redis.call('HDEL', parts, '') -- after a deletion, the script can write at maxmemory
if map ~= expected then
  if last_of(expected) > last then
    local _
    map, last = expected, math.max(tonumber(known[2] or nil) or 0, last_of(expected))
    _, gone = without(before, function(n)
      return not string.find(' ' .. expected, ' ' .. n .. ':', 1, true)
    end)
    redis.call('HSET', parts, 'map', map, 'last', string.format('%.0f', last))
  end
elseif verdict ~= '1' then
  redis.call('HDEL', parts, seen, sealed)
elseif tonumber(generation) ~= last then
  local rest, those = without(map, function(n)
    return n == generation
  end)
  if #those == 0 then
    redis.call('HDEL', parts, seen, sealed)
  elseif not since or since > now or (known[5] or '') ~= seal then -- or the clock was set back
    redis.call('HSET', parts, seen, now, sealed, seal)
  elseif now - since >= ms then
    map, gone = rest, those
    redis.call('HSET', parts, 'map', map)
    redis.call('HDEL', parts, seen, sealed)
    for name, n in string.gmatch(sums, '(%S+) (%d+)') do
      redis.pcall('HINCRBY', stats, name, n)
    end
  end
end
if #gone > 0 then
  local list = {}
  for one, at in string.gmatch(past, '(%d+:%d+k?)@(%d+)') do
    if tonumber(at) > now - 2592000000 then
      list[#list + 1] = one .. '@' .. at
    end
  end
  for _, one in ipairs(gone) do
    list[#list + 1] = one .. '@' .. string.format('%.0f', now)
  end
  table.sort(list, function(a, b)
    return tonumber(string.match(a, '^%d+')) < tonumber(string.match(b, '^%d+'))
  end)
  redis.call('HSET', parts, 'past', table.concat(list, ' ', math.max(1, #list - 99)))
end
if map ~= before then
  nudge(channel, 'parts', topic, 0, '')
end
remember(receipt, number, map)
return {'ok', now, map}
