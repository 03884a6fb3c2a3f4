-- nudge tells the servers of a prefix about one job, or with an empty id about a topic.
local function nudge(channel, verb, topic, fence, id)
  redis.call('PUBLISH', channel, verb .. ' ' .. fence .. ' ' .. #topic .. ' ' .. topic .. id)
end

