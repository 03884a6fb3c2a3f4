-- audit: records an act of an operator, by Redis's clock. Only the newest acts are kept.
--
-- KEYS[1]  audit  list, acts of operators, newest first
-- ARGV[1]  nonce  16 characters that no other act has
-- ARGV[2]  act    what follows the time and the nonce
-- ARGV[3]  most   how many acts to keep
--
-- An act that is among the newest 50 is not recorded again. Safe to send twice.
-- Returns {'ok', now}.
-- Cost: O(1).
-- Uses: now
local audit = KEYS[1]
local nonce, act, most = ARGV[1], ARGV[2], tonumber(ARGV[3])

for _, one in ipairs(redis.call('LRANGE', audit, 0, 49)) do
  if string.match(one, '^%d+ (%S+)') == nonce then
    return {'ok', now}
  end
end
redis.call('LTRIM', audit, 0, most - 2) -- after a deletion, the script can write at maxmemory
redis.call('LPUSH', audit, now .. ' ' .. nonce .. ' ' .. act)
return {'ok', now}
