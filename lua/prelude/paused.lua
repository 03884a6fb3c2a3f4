
-- Gives: paused
-- Expects: now

-- paused reports whether a topic is paused, by the fields paused and until of its meta. A damaged
-- until counts as none: the pause has no end until somebody resumes the topic.
local function paused(pause)
  return pause[1] and now < (tonumber(pause[2] or nil) or math.huge)
end
