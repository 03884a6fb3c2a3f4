-- idle: tells for each of some topics how long there is nothing to do. Writes nothing.
--
-- KEYS[1..] keys  bucket, leases, slots, handoff, waiting of each topic, of at most 200
--
-- There is something to do in a topic when the head of one of the first three (zsets) is due, and when one of the others is there. So
-- there is when one of them is of a wrong type: promote will say so, and the other topics are none the worse for it.
--
-- Where Redis takes no writes the answer is the error that says so: a master that has become a replica can be read from still, and would
-- go on telling what is no longer so.
--
-- Returns {'ok', now, waits}: for each topic the time to its earliest head in µs, at most 285 years; 0 if there is something to do now, -1
-- if there is nothing at all. Cost: O(log N) for each topic.
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
      local left = math.max(0, math.min(math.ceil(head[2]) * 1000 - time[1] * 1000000 - time[2], 9e15))
      if wait < 0 or left < wait then
        wait = left
      end
    end
  end
  waits[#waits + 1] = wait
end
return {'ok', now, waits}
