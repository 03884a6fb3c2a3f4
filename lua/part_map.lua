-- part_map: reads the map of the partitions of a topic. Writes nothing.
--
-- KEYS[1]  parts  hash, the map of the partitions of the topic
--
-- Returns {'ok', now, map, last, past}: the map, '' if the topic has no partitions; the highest
-- number that a generation has had; and the generations that have left the map not long ago, as in
-- the map, but each followed by an @ and when it left (Unix ms).
-- Cost: O(1).
-- Uses: now
local parts = KEYS[1]

local known = redis.call('HMGET', parts, 'map', 'last', 'past')
return {'ok', now, known[1] or '', known[2] or '0', known[3] or ''}
