
-- check_notes: finds what jobs have noted that are gone.
-- Gives: noted
-- Expects: left_over stray steps_in next notes pool read part found entries
--
-- orphan is a note of no job, or of an earlier one with its ID, or the result of a step that the
-- note of its job does not name, or the link of no member of a flow. What is left over of clients
-- that wait is prune's, and so are such links. unreadable is a note whose progress is malformed: it
-- is removed. If the names of its steps cannot be read, the note is left alone, because a job
-- without them would repeat the steps.

-- unreadable notes a finding if a note cannot be read.
local function unreadable(id, note)
  local _, stop = steps_in(note)
  if not stop then
    found(part, id, 'unreadable', false)
    return
  end
  local at, so_far, total, run, number, text = string.match(string.sub(note, stop),
    '^ (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  local fits = at and #at <= 15 and #so_far <= 19 and #total <= 19 and #run <= 19 and #number <= 19
    and #text <= 256
  if not fits and stop <= #note and found(part, id, 'unreadable', true) then
    redis.call('HSET', notes, 'p' .. id, string.sub(note, 1, stop - 1))
  end
end

-- noted checks fields of notes.
local function noted()
  for i = 1, #entries, 2 do
    if string.find(entries[i], '^l') then
      local id = string.sub(entries[i], 2)
      local left, size = stray(pool, next, id, entries[i + 1], read)
      read = read + size
      if left then
        found(part, id, 'orphan', false)
      end
    end
    local kind = string.match(entries[i], '^[ps]')
    if kind then
      local left, id, more = left_over(notes, pool, entries[i], entries[i + 1], read)
      read = read + (more or 0)
      if left and found(part, id, 'orphan', true) then
        redis.call('HDEL', notes, entries[i])
      end
      if kind == 'p' and not left then
        unreadable(id, entries[i + 1])
      end
    end
  end
end
