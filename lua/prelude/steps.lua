
-- steps: reads the steps of notes (see note).
-- Gives: steps_in

-- steps_in returns the names of the steps in a note, and where what follows them begins. That is
-- nil if not all names can be read.
local function steps_in(note)
  local size, at = string.match(note, '^(%d+):()', 9)
  local stop, names = size and at + size, {}
  while at and at < stop do
    local length, start = string.match(note, '^(%d+):()', at)
    at = length and start + length
    if at and at <= stop then
      names[#names + 1] = string.sub(note, start, at - 1)
    end
  end
  local whole = at and at == stop and string.find(note .. ' ', '^ ', stop)
  return names, whole and stop or nil
end
