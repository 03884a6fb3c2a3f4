-- delete: deletes done jobs. A live job with the same ID is left alone.
--
-- KEYS[1]  done      zset, job ID scored by the time it is kept until
-- KEYS[2]  results   hash, job ID to its kept run and record
-- KEYS[3]  stats     hash, counter to number
-- KEYS[4]  receipt   string, the last call of the series and its reply
-- KEYS[5]  operator  none, never exists: a client without rights to it cannot make this call
-- KEYS[6]  tombs     zset, closed job ID scored by when it is free again (Unix ms)
-- ARGV[1]  number    number of this call in its series
-- ARGV[2..]  jobs    for each job: ID, and how the caller knows it (see prelude/expect.lua). Each
--                    ID once, at most 500
--
-- The result is deleted first. If something fails before its place is deleted, another call or a
-- prune deletes the place.
-- Returns {'ok', now, letters}: one letter a job, e for deleted, c if it is not as the caller knows
-- it, g if there is no such done job, a if there is none and the topic is a closed place of one
-- that has partitions.
-- Cost: O(jobs × log N).
-- Uses: now receipt stats expect elsewhere
local done, results, stats, receipt, operator = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local tombs, number = KEYS[6], ARGV[1]
local jobs, first, width = ARGV, 2, 2

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local letters, deleted = {}, 0
for at = first, #jobs, width do
  local id, wanted = jobs[at], jobs[at + 1]
  local kept = wanted ~= '' and redis.call('ZSCORE', done, id)
  local letter
  if kept and not expected(wanted, 'e', kept, id, results) then
    letter = 'c'
  elseif redis.call('HDEL', results, id) + redis.call('ZREM', done, id) > 0 then
    letter, deleted = 'e', deleted + 1
  else
    letter = absent(tombs, deleted > 0)
  end
  letters[#letters + 1] = letter
end
count(stats, 'deleted', deleted)
letters = table.concat(letters)
remember(receipt, number, letters)
return {'ok', now, letters}
