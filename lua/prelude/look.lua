
-- Gives: look
-- Expects: nudge

-- look sends clients that wait for a job a message, each on its own channel. said is the key notes.
local function look(said, names, id)
  local prefix, of_topic = string.match(said, '^(.-):{(.-)}:')
  for _, name in ipairs(names) do
    local own = prefix .. ':control:' .. name
    nudge(own, 'look', of_topic, 0, id)
  end
end
