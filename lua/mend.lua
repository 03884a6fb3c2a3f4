-- mend: gives jobs that have lost their place a new one: bucket if they are due later, the tail of
-- ready if they are due, or lane if they have a key, dead if they were buried.
--
-- KEYS[1]    pool      hash, job ID to record
-- KEYS[2]    bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[3]    leases    zset, job ID scored by the end of its lease
-- KEYS[4]    dead      zset, job ID scored by the time of burial
-- KEYS[5]    attempts  hash, job ID to number of finished attempts
-- KEYS[6]    moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[7]    ready     list of job IDs, next one at the head
-- KEYS[8]    handoff   list of job IDs on the way from a server's wait to its take
-- KEYS[9]    stats     hash, counter to number
-- KEYS[10]   idle      zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[11]   turn      zset, key of waiting jobs scored by its pass
-- KEYS[12]   lane      zset, places of waiting jobs that have a key, each with the job ID
-- KEYS[13]   keyed     hash, job ID to its place in a lane, for jobs that have a key
-- KEYS[14]   sizes     hash, the size of the largest record, and the number of the last place
-- ARGV[1]    repair    1 to repair, 0 to report only
-- ARGV[2]    channel   the control channel
-- ARGV[3]    topic     the topic's name, for the control channel
-- ARGV[4..]  jobs      for each job the caller's data: ID, nonce, finished attempts, moved entry
--                      (these two empty if there is none), and where it belongs: its due time, or
--                      dead
--
-- A job is left alone if it no longer matches the caller's data: it is gone, or was replaced, run
-- or moved. It is also left alone if it has a place: in leases, in dead, in bucket with a possible
-- time, in lane, among the first or last thousand of ready, or among the first thousand of handoff.
-- A job with a key that keyed does not know gets a new place in its lane, by the due time. At most
-- 100 jobs a call. Safe to send twice.
-- Returns {'ok', now, letters}: m for mended (or to be mended), k for kept as it is.
-- Cost: O(1,000 + jobs × log N).
-- Uses: now stats control ring place rouse
local pool, bucket, leases, dead, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local moved, ready, handoff, stats, idle = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local turn, lane, keyed, sizes = KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local repair, channel, topic = ARGV[1], ARGV[2], ARGV[3]
local jobs, first, width = ARGV, 4, 5

local waits = {}
for _, ids in ipairs({
  redis.call('LRANGE', ready, 0, 999), redis.call('LRANGE', ready, -1000, -1),
  redis.call('LRANGE', handoff, 0, 999),
}) do
  for _, id in ipairs(ids) do
    waits[id] = true
  end
end

local letters, mended, soon, laned = {}, 0, 0, 0
for at = first, #jobs, width do
  local id, nonce, tried = jobs[at], jobs[at + 1], jobs[at + 2]
  local due, where = jobs[at + 3], jobs[at + 4]
  local record, delayed = redis.call('HGET', pool, id), redis.call('ZSCORE', bucket, id)
  local place = redis.call('HGET', keyed, id)
  if not record or not place or not of_record(place, record) then
    place = nil
  end
  local astray = record and string.sub(record, 1, 8) == nonce
    and (redis.call('HGET', attempts, id) or '') == tried
    and (redis.call('HGET', moved, id) or '') == due
    and not redis.call('ZSCORE', leases, id) and not redis.call('ZSCORE', dead, id)
  if delayed then
    astray = astray and (tonumber(delayed) or math.huge) > 9999999999999
  else
    if waits[id] or place and redis.call('ZSCORE', lane, place .. id) then
      astray = false
    end
  end
  letters[#letters + 1] = astray and 'm' or 'k'
  if astray and repair == '1' then
    redis.call('ZREM', leases, '') -- after a deletion, the script can write at maxmemory
    if where == 'dead' then
      redis.call('ZADD', dead, now, id)
      redis.call('ZREM', bucket, id)
    elseif tonumber(where) > now then
      redis.call('ZADD', bucket, where, id)
    elseif has_key(record) then
      if not place then
        place = place_of(record, tonumber(where), redis.call('HINCRBY', sizes, 'number', 1))
      end
      offer(turn, {(key_of(place))})
      redis.call('ZADD', lane, 0, place .. id)
      redis.call('HSET', keyed, id, place)
      redis.call('ZREM', bucket, id)
      soon, laned = soon + 1, laned + 1
    else
      redis.call('RPUSH', ready, id)
      redis.call('ZREM', bucket, id)
      waits[id], soon = true, soon + 1
    end
    mended = mended + 1
  end
end
count(stats, 'mended', mended)
if laned > 0 then
  rouse(ready, laned)
end
if soon > 0 then
  ring(idle, channel, topic, soon)
end
return {'ok', now, table.concat(letters)}
