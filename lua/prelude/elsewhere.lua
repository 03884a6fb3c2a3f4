
-- elsewhere: a closed topic takes no new IDs. It is a place of a topic that has partitions, and the
-- jobs that it does not have are in another one. What closes it is a tomb of the empty ID, which no
-- job has, for ever.
-- Gives: absent

-- absent returns the letter for an ID that the topic does not have: g, or a if the topic is closed.
-- It asks once in a call. A wrong type causes an error, unless the caller has written something.
local letter_of_absent
local function absent(tombs, written)
  if not letter_of_absent then
    local closed = (written and redis.pcall or redis.call)('ZSCORE', tombs, '')
    letter_of_absent = type(closed) == 'string' and 'a' or 'g'
  end
  return letter_of_absent
end
