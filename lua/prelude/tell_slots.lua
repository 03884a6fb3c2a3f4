
-- Gives: tell_slots
-- Expects: nudge

-- tell_slots tells the servers which jobs of schedules no longer keep slots waiting, although no
-- server has ended them: one job of each schedule. No slot waits for a job that was triggered.
local function tell_slots(channel, topic, ids)
  local told = {}
  for _, id in ipairs(ids) do
    local name = string.match(id, '^(.+)@%d+$')
    if name and not told[name] then
      told[name] = true
      nudge(channel, 'wake', topic, 0, id)
    end
  end
end
