-- revive: puts dead jobs back, with their attempts on record and their full number of retries: to
-- the tail of ready, or into the bucket if they are due later.
--
-- KEYS[1]  dead      zset, job ID scored by the time of burial
-- KEYS[2]  ready     list of job IDs, next one at the head
-- KEYS[3]  attempts  hash, job ID to number of finished attempts
-- KEYS[4]  moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[5]  stats     hash, counter to number
-- KEYS[6]  receipt   string, the last call of the series and its reply
-- KEYS[7]  operator  none, never exists: a client without rights to it cannot make this call
-- KEYS[8]  idle      zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[9]  bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[10]  turn      zset, key of waiting jobs scored by its pass
-- KEYS[11]  lane      zset, place and ID of every ready job that has a key
-- KEYS[12]  keyed     hash, job ID to its place in a lane
-- KEYS[13]  sizes     hash, the size of the largest record, and the number of the last place
-- KEYS[14]  blockers  zset, place and ID of every job that its key waits for (see limits)
-- KEYS[15]  parked    zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[16]  pool      hash, job ID to record
-- KEYS[17]  tombs     zset, closed job ID scored by when it is free again (Unix ms)
-- ARGV[1]  number    number of this call in its series
-- ARGV[2]  tick      ms, how far ahead timers look without a wake-up
-- ARGV[3]  channel   the control channel
-- ARGV[4]  topic     the topic's name, for the control channel
-- ARGV[5..]  jobs    for each job: ID, due time (Unix ms, or + and a delay in ms), and how the
--                    caller knows it (see prelude/expect.lua). Each ID once, at most 500
--
-- A job that its key waits for stays the first one of its key.
-- Returns {'ok', now, letters}: one letter a job, d for dead (revived), c if it is not as the
-- caller knows it, g if there is no such dead job, a if there is no such job at all and the topic
-- is a closed place of one that has partitions.
-- Cost: O(jobs × log N).
-- Uses: now receipt stats control wake ring expect trace place rouse line_up reseat free_keys
-- Uses: block unblock elsewhere
local dead, ready, attempts, moved = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local stats, receipt, operator, idle, bucket = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local turn, lane, keyed, sizes = KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local blockers, parked, pool, tombs = KEYS[14], KEYS[15], KEYS[16], KEYS[17]
local number, tick, channel, topic = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local jobs, first, width = ARGV, 5, 3

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local ids, letters, revived, dues = {}, {}, {}, {}
for at = first, #jobs, width do
  ids[#ids + 1] = jobs[at]
end
local buried = redis.call('ZMSCORE', dead, unpack(ids))
for i, id in ipairs(ids) do
  local at = first + (i - 1) * width
  local wanted = jobs[at + 2]
  letters[i] = buried[i] and 'd' or 'g'
  if buried[i] and not expected(wanted, 'd', buried[i], id, pool, attempts, moved)
    or not buried[i] and wanted ~= '' and redis.call('HEXISTS', pool, id) == 1 then
    letters[i] = 'c'
  elseif not buried[i] and absent(tombs) == 'a' and redis.call('HEXISTS', pool, id) == 0 then
    letters[i] = absent(tombs)
  elseif buried[i] then
    local due = jobs[at + 1]
    revived[#revived + 1] = id
    dues[#dues + 1] = string.byte(due) == 43 and now + due or math.max(tonumber(due), now)
  end
end
if #revived > 0 then
  local fields, later, soon, earliest = {}, {}, {}, nil
  local spent = redis.call('HMGET', attempts, unpack(revived))
  local known = redis.call('HMGET', moved, unpack(revived))
  for i, id in ipairs(revived) do
    local snoozes = string.match(known[i] or '', ' (%d+) [01]$') or '0'
    fields[2 * i - 1] = id
    fields[2 * i] = string.format('%s %s %s %s 1', dues[i], traced('revive', known[i]),
      spent[i] or '0', snoozes)
    if dues[i] > now then
      later[#later + 1], later[#later + 2] = dues[i], id
      earliest = math.min(earliest or dues[i], dues[i])
    else
      soon[#soon + 1] = id
    end
  end
  redis.call('HSET', moved, unpack(fields))
  -- A job that its key waits for keeps its place.
  local lanes = redis.call('EXISTS', keyed) == 1
  local places = lanes and redis.call('HMGET', keyed, unpack(revived)) or {}
  local stays, waiting = {}, {}
  for _, entry in ipairs((blocking(blockers, revived, places))) do
    stays[entry] = true
  end
  local others, when = {}, {}
  for i, id in ipairs(revived) do
    local kept = places[i] and stays[places[i] .. id]
    if not kept then
      others[#others + 1], when[#when + 1] = id, dues[i]
    elseif dues[i] > now then
      waiting[i] = places[i]
    end
  end
  reseat(keyed, sizes, others, when)
  local freed, plain = 0, soon
  if next(stays) then
    freed = unblock(blockers, parked, turn, lane, ready, revived, places)
    for i, place in pairs(waiting) do
      block(blockers, {revived[i]}, {place})
    end
  end
  if #soon > 0 and lanes then
    local laned
    laned, plain = line_up(turn, lane, keyed, soon)
    if laned > 0 then
      rouse(ready, laned)
    end
  end
  if #later > 0 then
    wake(bucket, earliest, tick, channel, topic)
    redis.call('ZADD', bucket, unpack(later))
  end
  if #plain > 0 then
    redis.call('RPUSH', ready, unpack(plain))
  end
  redis.call('ZREM', dead, unpack(revived))
  count(stats, 'revived', #revived)
  if #soon + freed > 0 then
    ring(idle, channel, topic, #soon + freed)
  end
end
letters = table.concat(letters)
remember(receipt, number, letters)
return {'ok', now, letters}
