
-- tidy: finds what is left over in notes.
-- Gives: left_over
-- Expects: now steps_in

-- left_over returns whether a field of notes is left over, and of which job; nothing if it cannot
-- tell. said is the key notes, stored the key pool. spent is how many bytes of records the call has
-- read. Beyond 1 MiB, a note counts if its job has a record at all. It also returns how many bytes
-- it has read. Outcomes and clients that wait are left over after a minute, and if they are of a
-- time that is more than a minute away: the clock was set back. The result of a step is if the note
-- of its job does not name the step, and all of its names can be read.
local function left_over(said, stored, field, value, spent)
  local kind, id = string.sub(field, 1, 1), string.sub(field, 2)
  if kind == 'e' then
    local at = tonumber(string.match(value, '^%a (%d+)') or nil) or 0
    return math.abs(now - at) > 60000, '', 0
  elseif kind == 'w' then
    local at = 1
    while true do
      local size, start = string.match(value, '^(%d+):()', at)
      if not size then
        return true, id, 0
      elseif math.abs(now - (tonumber(string.sub(value, start + 8, start + 20)) or 0)) <= 60000 then
        return false, id, 0
      end
      at = start + size
    end
  elseif kind == 'p' then
    local size = redis.call('HSTRLEN', stored, id)
    if size > 0 and spent > 0 and spent + size > 1048576 then
      return false, id, 0
    end
    local record = size > 0 and redis.call('HGET', stored, id) or ''
    return string.sub(record, 1, 8) ~= string.sub(value, 1, 8) or #record < 8, id, size
  elseif kind == 's' then
    local size, start = string.match(id, '^(%d+):()')
    if not size then
      return true, '', 0
    end
    local nonce = string.sub(id, start + size, start + size + 7)
    local name = string.sub(id, start + size + 8)
    id = string.sub(id, start, start + size - 1)
    local note = redis.call('HGET', said, 'p' .. id) or ''
    local known = string.sub(note, 1, 8) == nonce
    if known then
      local names, stop = steps_in(note)
      known = not stop
      for _, one in ipairs(names) do
        known = known or one == name
      end
    end
    return not known, id, #note
  end
end
