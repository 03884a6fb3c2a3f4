-- heartbeat: records that a server is alive, by Redis's clock.
--
-- KEYS[1]  servers  hash, server ID to the time of its last heartbeat, a space and its description
-- ARGV[1]  server   the server's ID
-- ARGV[2]  about    the description, JSON
--
-- Returns {'ok', now, new}: new is 1 if Redis did not have the server. Safe to send twice.
-- Cost: O(1).
-- Uses: now
local servers = KEYS[1]
local server, about = ARGV[1], ARGV[2]

local new = redis.call('HSET', servers, server, now .. ' ' .. about)
return {'ok', now, new}
