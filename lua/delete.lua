-- delete: deletes done jobs. A live job with the same ID is left alone.
--
-- KEYS[1]  done      zset, job ID scored by the time it is kept until
-- KEYS[2]  results   hash, job ID to its kept run and record
-- KEYS[3]  stats     hash, counter to number
-- KEYS[4]  receipt   string, the last call of the series and its reply
-- KEYS[5]  operator  none, never exists: a client without rights to it cannot make this call
-- ARGV[1]  number    number of this call in its series
-- ARGV[2..]  ids     the jobs, each once, at most 500
--
-- The result is deleted first. If something fails before its place is deleted, another call or a
-- prune deletes the place.
-- Returns {'ok', now, letters}: one letter a job, e for deleted, g if there is no such done job.
-- Cost: O(jobs × log N).
-- Uses: now receipt stats
local done, results, stats, receipt, operator = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local number = ARGV[1]
local ids, first = ARGV, 2

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local letters, deleted = {}, 0
for i = first, #ids do
  local found = redis.call('HDEL', results, ids[i]) + redis.call('ZREM', done, ids[i]) > 0
  letters[#letters + 1] = found and 'e' or 'g'
  deleted = deleted + (found and 1 or 0)
end
count(stats, 'deleted', deleted)
letters = table.concat(letters)
remember(receipt, number, letters)
return {'ok', now, letters}
