-- priority: gives an unfinished job that has a key another head start.
--
-- KEYS[1]  pool     hash, job ID to record
-- KEYS[2]  keyed    hash, job ID to its place in a lane
-- KEYS[3]  lane     zset, place and ID of every ready job that has a key
-- KEYS[4]  receipt  string, the last call of the series and its reply
-- KEYS[5]  blockers  zset, place and ID of every job that its key waits for (see limits)
-- KEYS[6]  turn      zset, key of waiting jobs scored by its pass
-- KEYS[7]  ready     list of job IDs, next one at the head
-- KEYS[8]  idle      zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[9]   bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[10]  leases    zset, job ID scored by the end of its lease
-- KEYS[11]  dead      zset, job ID scored by the time of burial
-- KEYS[12]  attempts  hash, job ID to number of finished attempts
-- KEYS[13]  moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[14]  tombs     zset, closed job ID scored by when it is free again (Unix ms)
-- ARGV[1]  number   number of this call in its series
-- ARGV[2]  id       the job
-- ARGV[3]  start    the head start in ms plus 2^31
-- ARGV[4]  channel  the control channel
-- ARGV[5]  topic    the topic's name, for the control channel
-- ARGV[6]  known    how the caller knows the job (see prelude/expect.lua)
--
-- The job gets a new place, for the same due time and with the same number. If it does not wait in
-- its lane now, it has that place when it waits again.
-- Returns {'ok', now, answer, before}: set, plain for a job without a key, gone if there is no such
-- job, elsewhere if there is none and the topic is a closed place of one that has partitions, lost
-- if its place is lost, or changed if it is not as the caller knows it. Only with set anything has
-- changed. Then before is start as it was, and otherwise it is ''.
-- Cost: O(log N), and the record is read.
-- Uses: now receipt retold control ring expect trace place rouse reseat block
local pool, keyed, lane, receipt, blockers = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local turn, ready, idle, bucket, leases = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local dead, attempts, moved, tombs = KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local number, id, start = ARGV[1], ARGV[2], tonumber(ARGV[3])
local channel, topic, known = ARGV[4], ARGV[5], ARGV[6]

local told = replay(receipt, number)
if told then
  return retold(told)
end
local before = ''
local answer, place, record = 'gone', redis.call('HGET', keyed, id), redis.call('HGET', pool, id)
if record and not unchanged(known, id, pool, bucket, leases, dead, attempts, moved) then
  answer = 'changed'
elseif record and place and key_of(place) and of_record(place, record) then
  answer = 'set'
  local front = tonumber(string.sub(place, -37, -27), 16)
  local given = tonumber(string.sub(place, -26, -17), 16)
  local old, first = tonumber(string.sub(place, -16, -9), 16), string.sub(place, 1, -place_rest - 1)
  before = string.format('%.0f', old)
  local due = front + old - 2147483648
  -- The first job of its key has no due time in its place.
  touch(moved, {id}, {redis.call('ZSCORE', bucket, id) or is_foremost(place) and now or due})
  due = is_foremost(place) and -9007199254740992 or due
  local new = placed_at(first, due, given, start, string.sub(place, -8))
  local key = key_of(new)
  local blocks = redis.call('ZREM', blockers, place .. id) == 1
  if blocks then
    redis.call('ZADD', blockers, 0, new .. id)
    blocks = redis.call('ZLEXCOUNT', lane, lane_range(key)) > 0
  end
  redis.call('HSET', keyed, id, new)
  local waits = redis.call('ZREM', lane, place .. id) == 1
  if waits then
    redis.call('ZADD', lane, 0, new .. id)
  end
  -- A ready job may now come before the job that its key waits for.
  if blocks or waits and redis.call('EXISTS', blockers) == 1 then
    offer(turn, {key})
    rouse(ready, 1)
    ring(idle, channel, topic, 1)
  end
elseif record then
  answer = has_key(record) and 'lost' or 'plain'
elseif redis.call('ZSCORE', tombs, '') then
  answer = 'elsewhere'
end
remember(receipt, number, answer .. ' ' .. before)
return {'ok', now, answer, before}
