-- part_empty: reports whether a topic is closed and what it still has. Writes nothing.
--
-- KEYS[1]   pool     hash, job ID to record
-- KEYS[2]   done     zset, job ID scored by the time it is kept until
-- KEYS[3]   results  hash, job ID to its kept run and record
-- KEYS[4]   next     hash, running job ID to the successor that it will have
-- KEYS[5]   tombs    zset, closed job ID scored by when it is free again (Unix ms)
-- KEYS[6]   parcels  zset, what is on the way to other topics, by target and number
-- KEYS[7]   flows    hash, ID of a last step to how far its flow has come
-- KEYS[8]   steps    hash, the steps of flows
-- KEYS[9]   leases   zset, job ID scored by the end of its lease
-- KEYS[10]  notes    hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[11]  dead     zset, job ID scored by the time of burial
-- KEYS[12]  stats    hash, counter to number
-- KEYS[13]  parts    hash, the map of the partitions of the topic
-- KEYS[14]  staying  zset, key of a closed place scored by the pass that has found it last
--
-- Returns {'ok', now, closed, unfinished, left, seal, counters, keys}: 1 if it is closed and
-- otherwise 0, the number of unfinished jobs, and of all that must be gone before nobody serves the
-- topic: unfinished jobs (dead ones too), successors, done jobs, leases, tombs, parcels, flows,
-- steps, notes and keys that stay. Its seal follows ('': none) and, if it is closed and has nothing
-- left, its counters: names and numbers. keys is 1 if keys may stay, so that part_keys must look
-- which ones, and otherwise 0.
-- Cost: O(1).
-- Uses: now lease
local pool, done, results, next, tombs = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local parcels, flows, steps, leases, notes = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local dead, stats, parts, staying = KEYS[11], KEYS[12], KEYS[13], KEYS[14]

local closed = redis.call('ZSCORE', tombs, '') and 1 or 0
local unfinished = redis.call('HLEN', pool)
local left = math.max(unfinished, redis.call('ZCARD', dead)) + redis.call('HLEN', next)
  + math.max(redis.call('ZCARD', done), redis.call('HLEN', results))
  + redis.call('ZCARD', leases) + redis.call('ZCARD', tombs) - closed
  + redis.call('ZCARD', parcels) + redis.call('HLEN', flows) + redis.call('HLEN', steps)
  + redis.call('HLEN', notes) + redis.call('ZCARD', staying)
if redis.call('ZSCORE', leases, anchor()) then
  left = left - 1
end
local seal, counters = redis.call('HGET', parts, 'seal') or '', {}
local cursor = redis.call('HLEN', stats) > 0 and closed == 1 and left == 0 and '0'
while cursor do
  local page = redis.call('HSCAN', stats, cursor, 'COUNT', 1000)
  for _, word in ipairs(page[2]) do
    counters[#counters + 1] = word
  end
  cursor = page[1] ~= '0' and page[1]
end
return {'ok', now, closed, unfinished, left, seal, counters, redis.call('EXISTS', staying)}
