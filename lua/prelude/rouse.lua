
-- Gives: rouse

-- rouse wakes servers that block, one for each job that is ready in a lane, because they wait for
-- IDs in ready. An empty ID has no record, so take drops it. At most 64 are there.
local function rouse(ready, jobs)
  local missing = math.min(jobs, 64) - redis.call('LLEN', ready)
  if missing > 0 then
    local empty = {}
    for i = 1, missing do
      empty[i] = ''
    end
    redis.call('RPUSH', ready, unpack(empty))
  end
end
