-- keys: reads the keys of the jobs that wait in lanes. Writes nothing.
--
-- KEYS[1]  lane      zset, places of waiting jobs that have a key, each with the job ID
-- KEYS[2]  rules     hash, key to what is set for it
-- KEYS[3]  operator  none, never exists: a client without rights to it cannot make this call
-- ARGV[1]  after     the key after which to begin; empty: at the first one
-- ARGV[2]  limit     most keys to return, at most 1,000
--
-- Keys are in the order of lane: shorter ones first, and keys of one length by their bytes.
-- Returns {'ok', now, keys, waiting, first, rules}: four lists. waiting has the number of entries
-- of each key, first the ID of its first one, and rules what is set for it, if anything is.
-- Cost: O(limit × log N).
-- Uses: now place
local lane, rules, operator = KEYS[1], KEYS[2], KEYS[3]
local after, limit = ARGV[1], tonumber(ARGV[2])

local keys, waiting, first, set = {}, {}, {}, {}
local from = '-'
if after ~= '' then
  from = '(' .. lane_end(after)
end
for _ = 1, 2 * limit do -- malformed entries are passed over
  local entry = redis.call('ZRANGEBYLEX', lane, from, '+', 'LIMIT', 0, 1)[1]
  if not entry or #keys == limit then
    break
  end
  local key, _, id = key_of(entry)
  if key then
    local n = #keys + 1
    keys[n], first[n] = key, id
    waiting[n] = redis.call('ZLEXCOUNT', lane, '[' .. entry, '(' .. lane_end(key))
    from = '(' .. lane_end(key)
  else
    from = '(' .. entry
  end
end
for i, rule in ipairs(#keys > 0 and redis.call('HMGET', rules, unpack(keys)) or {}) do
  set[i] = rule or ''
end
return {'ok', now, keys, waiting, first, set}
