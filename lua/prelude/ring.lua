
-- Gives: ring
-- Expects: nudge

-- ring wakes servers that wait for jobs, one for each job put into ready, at most 100: the longest
-- waiting first. A name leaves idle before the topic is published on its channel. If nobody listens
-- there any more, the next one is rung; after 1,000 such names that ends. If the right to publish
-- there is missing, the message goes to the control channel. With pcall: a ring never decides the
-- fate of a job.
local function ring(idle, channel, topic, jobs)
  if redis.pcall('ZCARD', idle) == 0 then
    return
  end
  local left, silent = math.min(jobs, 100), 0
  local names = redis.pcall('ZRANGE', idle, 0, left - 1)
  while names[1] and redis.pcall('ZREM', idle, unpack(names)) == #names do
    for _, name in ipairs(names) do
      local heard = redis.pcall('PUBLISH', channel .. ':' .. name, topic)
      if heard == 0 then
        silent = silent + 1
      else
        left = left - 1
      end
      if type(heard) == 'table' then
        nudge(channel, 'ring', topic, 0, name)
      end
    end
    names = left > 0 and silent < 1000 and redis.pcall('ZRANGE', idle, 0, left - 1) or {}
  end
end
