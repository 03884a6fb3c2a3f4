-- idle: reports how long each of some topics has nothing to do. Writes nothing.
--
-- KEYS[1..]  keys  bucket, leases, slots, handoff, waiting of each topic, of at most 200
--
-- A topic has something to do if the head of one of the first three keys (zsets) is due, or if one
-- of the others exists. A key of a wrong type counts as something to do: promote reports it, and
-- the other topics are not affected.
--
-- If Redis accepts no writes, the reply is the error that says so. A master that has become a
-- replica can still be read, and its data can be stale.
--
-- Returns {'ok', now, waits}: for each topic the time to its earliest head in µs, at most 285
-- years; 0 if there is something to do now, -1 if there is nothing at all.
-- Cost: O(log N) for each topic.
-- Uses: now lease
local keys = KEYS
local first = keys[1]

local written = redis.pcall('ZREM', first, '') -- no job and no schedule has that name
if type(written) == 'table' and not string.find(written.err, 'WRONGTYPE', 1, true) then
  return written
end

local waits = {}
for i = 1, #keys, 5 do
  local handoff, waiting = keys[i + 3], keys[i + 4]
  local wait = redis.pcall('EXISTS', handoff, waiting) == 0 and -1 or 0
  for k = i, i + 2 do
    local zset = keys[k]
    local head = wait ~= 0 and redis.pcall('ZRANGE', zset, 0, 0, 'WITHSCORES') or {}
    if head.err then
      wait = 0
    elseif head[2] and head[1] ~= anchor() then
      local left = math.ceil(head[2]) * 1000 - time[1] * 1000000 - time[2]
      left = math.max(0, math.min(left, 9e15))
      if wait < 0 or left < wait then
        wait = left
      end
    end
  end
  waits[#waits + 1] = wait
end
return {'ok', now, waits}
