
-- Gives: nudge

-- nudge sends the servers of a prefix a message about one job, or with an empty ID about a topic.
-- With pcall: a message never decides the fate of a job, even if the right to publish is missing.
local function nudge(channel, verb, topic, fence, id)
  redis.pcall('PUBLISH', channel, verb .. ' ' .. fence .. ' ' .. #topic .. ' ' .. topic .. id)
end
