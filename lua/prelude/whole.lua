
-- Gives: stamp_of whole

-- A record arrives as head and tail, and the script puts the time of enqueueing between them. That
-- makes a second string of all bytes, which costs as much as the first one. So a large record
-- arrives whole, as a head with an empty tail, and has the time that its caller has guessed.
-- stamp_of returns that time, or nil.
local function stamp_of(head, tail)
  return tail == '' and tonumber(string.sub(head, 13, 25)) or nil
end

-- whole returns a record that has arrived so, with the time of enqueueing that terms has returned.
-- enqueued is the present time as records have it.
local function whole(record, from, enqueued)
  if stamp_of(record, '') == from then
    return record
  end
  return string.sub(record, 1, 11) .. enqueued .. string.sub(record, 26)
end
