
-- check_flows: finds flows that have lost their last steps.
-- Gives: begun
-- Expects: read_flow pool part found entries
--
-- orphan is a flow without its last step, and unreadable one whose value is malformed. Both are
-- left alone: servers delete the first one.

-- begun checks entries of flows.
local function begun()
  for i = 1, #entries, 2 do
    if not read_flow(entries[i + 1]) then
      found(part, entries[i], 'unreadable', false)
    elseif redis.call('HEXISTS', pool, entries[i]) == 0 then
      found(part, entries[i], 'orphan', false)
    end
  end
end
