
-- Gives: muted

-- What precedes cancel in the same call passes to it: the IDs of members of flows whose ends nobody
-- needs to be told.
local muted = {}
