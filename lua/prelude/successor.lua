
-- successor: a job that was enqueued while one with its ID ran (see replace) is the successor of
-- that one. It waits in next until that has ended: when it is due (Unix ms), the reason for its
-- entry in moved, and its record, with spaces between them.
-- Gives: successor_of

-- successor_of reads an entry of next. It returns nothing if there is none.
local function successor_of(entry)
  local ms, why, start = string.match(entry or '', '^(%d+) (%a%S*) ()')
  if ms then
    return tonumber(ms), why, string.sub(entry, start)
  end
end
