-- give_back: gives jobs back to the head of ready because their server does not run them. No
-- attempt is used up.
--
-- KEYS[1]    leases   zset, job ID scored by the end of its lease
-- KEYS[2]    ready    list of job IDs, next one at the head
-- KEYS[3]    stats    hash, counter to number
-- KEYS[4]    receipt  string, the last call of the series and its reply
-- KEYS[5]    pool     hash, job ID to record
-- KEYS[6]    idle     zset, waiting server scored by the time its wait began (Unix ms)
-- ARGV[1]    number   number of this call in its series
-- ARGV[2]    channel  the control channel
-- ARGV[3]    topic    the topic's name, for the control channel
-- ARGV[4..]  jobs     rows (see prelude/settle.lua) with no values, in the order in which the jobs
--                     run
--
-- At most 1,000 jobs a call.
-- Returns {'ok', now, letters}: o for given back, l for lost, g for gone; no letters if all are
-- given back.
-- Cost: O(jobs × log N).
-- Uses: now receipt stats lease settle control ring
local leases, ready, stats = KEYS[1], KEYS[2], KEYS[3]
local receipt, pool, idle = KEYS[4], KEYS[5], KEYS[6]
local number, channel, topic = ARGV[1], ARGV[2], ARGV[3]
local jobs, first = ARGV, 4

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local ids, _, letters = rows(leases, pool, jobs, first)
if #ids > 0 then
  redis.call('ZREM', leases, '') -- after a deletion, the script can write at maxmemory
  for i = #ids, 1, -1 do
    redis.call('LPUSH', ready, ids[i])
  end
  release(leases, ids)
  ring(idle, channel, topic, #ids)
end
count(stats, 'returned', #ids)
remember(receipt, number, letters)
return {'ok', now, letters}
