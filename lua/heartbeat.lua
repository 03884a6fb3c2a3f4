-- heartbeat: says that a server lives, by the Redis clock.
--
-- KEYS[1]  servers  hash, server id to the time of its last heartbeat, a space and its description
-- ARGV[1]  server   the server's id
-- ARGV[2]  about    the description, JSON
--
-- Safe to send twice. Returns {'ok', now}. Cost: O(1).
local servers = KEYS[1]
local server, about = ARGV[1], ARGV[2]

redis.call('HSET', servers, server, now .. ' ' .. about)
return {'ok', now}
