-- list: lists jobs in one state, in their order. Writes nothing.
--
-- KEYS[1]  pool      hash, job ID to record
-- KEYS[2]  bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[3]  ready     list of job IDs, next one at the head
-- KEYS[4]  leases    zset, job ID scored by the end of its lease
-- KEYS[5]  dead      zset, job ID scored by the time of burial
-- KEYS[6]  done      zset, job ID scored by the time it is kept until
-- KEYS[7]  operator  none, never exists: a client without rights to it cannot make this call
-- ARGV[1]  state     scheduled, ready, running, dead or done
-- ARGV[2]  offset    how many entries to skip
-- ARGV[3]  limit     how many entries to read, at most 1,000
--
-- Entries of ready that are no ready job are read and left out. An ID that occurs there twice is
-- returned twice.
-- Returns {'ok', now, looked, ids}: looked is how many entries were read. It is less than limit
-- only if there are no more.
-- Cost: O(log N + limit), and for ready O(offset + limit).
-- Uses: now
local pool, bucket, ready, leases, dead, done = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local operator = KEYS[7]
local state, offset, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local last = offset + limit - 1
local entries
if state == 'scheduled' then
  entries = redis.call('ZRANGE', bucket, offset, last)
elseif state == 'ready' then
  entries = redis.call('LRANGE', ready, offset, last)
elseif state == 'running' then -- without the anchor, whose score is +inf
  entries = redis.call('ZRANGE', leases, '-inf', 9999999999999, 'BYSCORE', 'LIMIT', offset, limit)
elseif state == 'dead' then
  entries = redis.call('ZRANGE', dead, offset, last, 'REV')
else
  entries = redis.call('ZRANGE', done, offset, last)
end

local ids = entries
if state == 'ready' and #entries > 0 then
  local delayed = redis.call('ZMSCORE', bucket, unpack(entries))
  local leased = redis.call('ZMSCORE', leases, unpack(entries))
  local buried = redis.call('ZMSCORE', dead, unpack(entries))
  ids = {}
  for i, id in ipairs(entries) do
    local elsewhere = delayed[i] or leased[i] or buried[i]
    if not elsewhere and redis.call('HEXISTS', pool, id) == 1 then
      ids[#ids + 1] = id
    end
  end
end
return {'ok', now, #entries, ids}
