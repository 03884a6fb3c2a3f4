
-- Gives: handed

-- What precedes ack or again in the same call passes to it: over, a function that stores what the
-- runs of these jobs hand over.
local handed = {}
