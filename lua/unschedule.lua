-- unschedule: removes a schedule with its history. Jobs that it has fired are jobs like any other.
--
-- KEYS[1]  schedules  hash, name to definition
-- KEYS[2]  slots      zset, name scored by the next slot (Unix ms)
-- KEYS[3]  waiting    zset, name scored by the slot that waits for the end of the last run
-- KEYS[4]  fired      hash, name to what has become of its slots
-- KEYS[5]  runs       hash, name to the history of its runs
-- KEYS[6]  receipt    string, the last call of the lane and its reply
-- ARGV[1]  number  number of this call in its lane
-- ARGV[2]  name    the schedule
--
-- The definition goes last: if something fails before, another call finds it and removes the rest.
-- Returns {'ok', now, state}: gone, or none when there is no such schedule. Cost: O(log N).
local schedules, slots, waiting, fired, runs, receipt = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local number, name = ARGV[1], ARGV[2]

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local state = 'none'
if redis.call('HEXISTS', schedules, name) == 1 then
  state = 'gone'
  redis.call('ZREM', slots, name)
  redis.call('ZREM', waiting, name)
  redis.call('HDEL', fired, name)
  redis.call('HDEL', runs, name)
  redis.call('HDEL', schedules, name)
end
remember(receipt, number, state)
return {'ok', now, state}
