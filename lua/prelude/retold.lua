
-- Gives: retold
-- Expects: now

-- retold replies to an act that is repeated: the first word of its receipt is what was done, and
-- the rest is what was there before.
local function retold(told)
  return {'ok', now, string.match(told, '^(%S+) (.*)$')}
end
