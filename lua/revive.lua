-- revive: puts dead jobs back to the tail of ready, with their attempts on record and their full
-- number of retries.
--
-- KEYS[1]  dead      zset, job ID scored by the time of burial
-- KEYS[2]  ready     list of job IDs, next one at the head
-- KEYS[3]  attempts  hash, job ID to number of finished attempts
-- KEYS[4]  moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[5]  stats     hash, counter to number
-- KEYS[6]  receipt   string, the last call of the series and its reply
-- KEYS[7]  operator  none, never exists: a client without rights to it cannot make this call
-- KEYS[8]  idle      zset, waiting server scored by the time its wait began (Unix ms)
-- ARGV[1]  number    number of this call in its series
-- ARGV[2]  channel   the control channel
-- ARGV[3]  topic     the topic's name, for the control channel
-- ARGV[4..]  given   IDs of the jobs, each once, at most 500
--
-- Returns {'ok', now, letters}: one letter a job, d for dead (revived), g if there is no such dead
-- job.
-- Cost: O(jobs × log N).
-- Uses: now receipt stats control ring
local dead, ready, attempts, moved = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local stats, receipt, operator, idle = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local number, channel, topic = ARGV[1], ARGV[2], ARGV[3]
local given, first = ARGV, 4

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local ids, letters, revived, fields = {}, {}, {}, {}
for i = first, #given do
  ids[#ids + 1] = given[i]
end
local buried = redis.call('ZMSCORE', dead, unpack(ids))
for i, id in ipairs(ids) do
  letters[i] = buried[i] and 'd' or 'g'
  if buried[i] then
    revived[#revived + 1] = id
  end
end
if #revived > 0 then
  local spent = redis.call('HMGET', attempts, unpack(revived))
  local known = redis.call('HMGET', moved, unpack(revived))
  for i, id in ipairs(revived) do
    local snoozes = string.match(known[i] or '', ' (%d+) [01]$') or '0'
    fields[2 * i - 1] = id
    fields[2 * i] = now .. ' revive ' .. (spent[i] or '0') .. ' ' .. snoozes .. ' 1'
  end
  redis.call('HSET', moved, unpack(fields))
  redis.call('RPUSH', ready, unpack(revived))
  redis.call('ZREM', dead, unpack(revived))
  count(stats, 'revived', #revived)
  ring(idle, channel, topic, #revived)
end
letters = table.concat(letters)
remember(receipt, number, letters)
return {'ok', now, letters}
