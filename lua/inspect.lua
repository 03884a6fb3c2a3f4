-- inspect: reports what is due in a topic and has not started, since when parcels wait, and how
-- many flows are at risk. Writes nothing.
--
-- KEYS[1]   pool     hash, job ID to record
-- KEYS[2]   bucket   zset, job ID scored by due time (Unix ms)
-- KEYS[3]   leases   zset, job ID scored by the end of its lease
-- KEYS[4]   dead     zset, job ID scored by the time of burial
-- KEYS[5]   ready    list of job IDs, next one at the head
-- KEYS[6]   moved    hash, job ID to its current due time, if it differs from the record's
-- KEYS[7]   lane     zset, places of waiting jobs that have a key, each with the job ID
-- KEYS[8]   turn     zset, key of waiting jobs scored by its pass
-- KEYS[9]   held     zset, key scored by the end of its hold (Unix ms)
-- KEYS[10]  parcels  zset, jobs that ended runs have handed over, by target and number
-- KEYS[11]  flows    hash, ID of a last step to how far its flow has come
--
-- Returns {'ok', now, how many of bucket are due, first, laned, oldest, risky}: first has the entry
-- in moved and the first 305 bytes of the record of the first ready job among the first 20 entries,
-- if there is one. laned has the same of the earliest job among the first ones in the lanes of the
-- 20 keys whose turn is next, without those that are held. Jobs with records of more than 16 KiB
-- are passed over, because Redis would have to copy all of one. oldest is the earliest time at
-- which the run of a first parcel was acked, 0 if there is none: of at most 20 targets, and of no
-- further ones once these parcels have 1 MiB. risky is how many flows are open and have a step that
-- has ended badly, although half of the time to their deadline has passed: among about 500 flows.
-- Cost: O(500 × log N).
-- Uses: now place parcels flow
local pool, bucket, leases, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ready, moved, lane, turn, held = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local parcels, flows = KEYS[10], KEYS[11]

-- about returns what is told of a job, or nil if its record is gone or large.
local function about(id)
  local size = redis.call('HSTRLEN', pool, id)
  if size > 0 and size <= 16384 then
    local record = redis.call('HGET', pool, id)
    return {redis.call('HGET', moved, id) or '', string.sub(record, 1, 305)}
  end
end

local first = nil
for _, id in ipairs(redis.call('LRANGE', ready, 0, 19)) do
  local elsewhere = redis.call('ZSCORE', bucket, id) or redis.call('ZSCORE', leases, id)
    or redis.call('ZSCORE', dead, id)
  first = not elsewhere and about(id)
  if first then
    break
  end
end

local laned, earliest = nil, nil
local keys = redis.call('ZRANGE', turn, 0, 19)
local ends = #keys > 0 and redis.call('ZMSCORE', held, unpack(keys)) or {}
for i, key in ipairs(keys) do
  local from, to = lane_range(key)
  local entry = redis.call('ZRANGEBYLEX', lane, from, to, 'LIMIT', 0, 1)[1]
  if (tonumber(ends[i] or 0) or 0) > now then
    entry = nil
  end
  local front = entry and string.sub(entry, #key + 2, #key + 12)
  if front and (not earliest or tonumber(front, 16) < tonumber(earliest, 16)) then
    local _, _, id = key_of(entry)
    local one = about(id)
    laned, earliest = one or laned, one and front or earliest
  end
end

-- A damaged parcel counts as a target.
local oldest, from, read = 0, '-', 0
for _ = 1, 20 do
  local one = read < 1048576 and redis.call('ZRANGEBYLEX', parcels, from, '+', 'LIMIT', 0, 1)[1]
  if not one then
    break
  end
  read = read + #one
  local target, since = parcel_of(one)
  if target and (oldest == 0 or since < oldest) then
    oldest = since
  end
  from = target and '(' .. parcel_front(target) .. 'g' or '(' .. one
end

local page, some, starts = redis.call('HSCAN', flows, 0, 'COUNT', 500)[2], {}, {}
for i = 1, math.min(#page, 1000), 2 do
  local flow = read_flow(page[i + 1])
  if flow and flow.state == 'o' and flow.failed > 0 then
    some[#some + 1], starts[#starts + 1] = page[i], flow.started
  end
end
local risky = 0
for i, due in ipairs(#some > 0 and redis.call('ZMSCORE', bucket, unpack(some)) or {}) do
  local half = due and (starts[i] + due) / 2 -- a last step that is not scheduled is past it
  risky = risky + ((not half or half <= now) and 1 or 0)
end

return {'ok', now, redis.call('ZCOUNT', bucket, 0, now), first or {}, laned or {}, oldest, risky}
