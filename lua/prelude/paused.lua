
-- Gives: paused
-- Expects: now

-- paused reports whether a topic is paused, by the fields paused and until of its meta.
local function paused(pause)
  return pause[1] and (not pause[2] or now < tonumber(pause[2]))
end
