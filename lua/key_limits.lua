-- key_limits: sets the limits of a key.
--
-- KEYS[1]  rules     hash, key to what is set for it
-- KEYS[2]  receipt   string, the last call of the series and its reply
-- KEYS[3]  operator  none, never exists: a client without rights to it cannot make this call
-- ARGV[1]  number    number of this call in its series
-- ARGV[2]  key       the key
-- ARGV[3]  weight    its share of the starts; empty: the default, and nothing is kept
-- ARGV[4]  most      most keys that can have limits
--
-- Returns {'ok', now, answer}: set, or full if so many other keys have limits. Then nothing has
-- changed.
-- Cost: O(1).
-- Uses: now receipt
local rules, receipt, operator = KEYS[1], KEYS[2], KEYS[3]
local number, key, weight, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end
local answer = 'set'
if weight == '' then
  redis.call('HDEL', rules, key)
elseif redis.call('HLEN', rules) >= most and redis.call('HEXISTS', rules, key) == 0 then
  answer = 'full'
else
  redis.call('HSET', rules, key, weight)
end
remember(receipt, number, answer)
return {'ok', now, answer}
