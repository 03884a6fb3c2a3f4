-- nudge tells the servers of a prefix about one job, or with an empty id about a topic. With pcall: it never decides the fate of a
-- job, not even when the right to publish is missing.
local function nudge(channel, verb, topic, fence, id)
  redis.pcall('PUBLISH', channel, verb .. ' ' .. fence .. ' ' .. #topic .. ' ' .. topic .. id)
end

