
-- Gives: released

-- What precedes reschedule in the same call passes to it: why, the reason that moved gets.
local released = {}
