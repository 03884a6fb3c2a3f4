
-- check_notes: finds what jobs have noted that are gone.
-- Gives: noted
-- Expects: left_over notes pool read part found entries
--
-- orphan is a note of no job, or of an earlier one with its ID, or the result of a step that the
-- note of its job does not name. What is left over of clients that wait is prune's.

-- noted checks fields of notes.
local function noted()
  for i = 1, #entries, 2 do
    local kind = string.match(entries[i], '^[ps]')
    if kind then
      local left, id, more = left_over(notes, pool, entries[i], entries[i + 1], read)
      read = read + (more or 0)
      if left and found(part, id, 'orphan', true) then
        redis.call('HDEL', notes, entries[i])
      end
    end
  end
end
