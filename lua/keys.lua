-- keys: reads the keys of the jobs that wait in lanes, or one key. Writes nothing.
--
-- KEYS[1]  lane      zset, places of waiting jobs that have a key, each with the job ID
-- KEYS[2]  rules     hash, key to what is set for it
-- KEYS[3]  held      zset, key scored by the end of its hold (Unix ms)
-- KEYS[4]  operator  none, never exists: a client without rights to it cannot make this call
-- KEYS[5]  parked    zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[6]  holders   zset, key and ID of every running job whose key has a limit of running jobs
-- KEYS[7]  blockers  zset, place and ID of every job that its key waits for (see limits)
-- KEYS[8]  bucket    zset, job ID scored by due time (Unix ms)
-- ARGV[1]  after     the key after which to begin; empty: at the first one
-- ARGV[2]  limit     most keys to return, at most 1,000; 0: the key after itself, even if it has no
--                    jobs
--
-- Keys are in the order of lane: shorter ones first, and keys of one length by their bytes.
-- Returns {'ok', now, keys, waiting, first, rules, held, parked, running, blocker, due}: nine
-- lists. waiting has the number of entries of each key, first the ID of its first one, rules what
-- is set for it, if anything is, held the end of its hold, or '' if it is not held, parked when it
-- gets a turn, or '' if it is not parked, and running the number of its entries in holders. blocker
-- has the ID of the job that the key waits for, or '', and due when that job is due, or '' if it is
-- dead.
-- Cost: O(limit × log N).
-- Uses: now place
local lane, rules, held, operator = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local parked, holders, blockers, bucket = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local after, limit = ARGV[1], tonumber(ARGV[2])

local keys, waiting, first, set = {}, {}, {}, {}
local first_of, last_of = lane_range(after)
local from = after == '' and '-' or last_of
if limit == 0 then
  local entries = redis.call('ZRANGEBYLEX', lane, first_of, last_of, 'LIMIT', 0, 1)
  local _, _, id = key_of(entries[1] or '')
  keys[1], first[1] = after, id or ''
  waiting[1] = redis.call('ZLEXCOUNT', lane, first_of, last_of)
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
    _, last_of = lane_range(key)
    waiting[n] = redis.call('ZLEXCOUNT', lane, '[' .. entry, last_of)
    from = last_of
  else
    from = '(' .. entry
  end
end
for i, rule in ipairs(#keys > 0 and redis.call('HMGET', rules, unpack(keys)) or {}) do
  set[i] = rule or ''
end
-- ends returns the scores of the keys in a zset, or '' for those that are not in it.
local function ends(zset)
  local list = {}
  for i, score in ipairs(#keys > 0 and redis.call('ZMSCORE', zset, unpack(keys)) or {}) do
    list[i] = ''
    if score and tonumber(score) > now then
      list[i] = score
    end
  end
  return list
end
local running, counted = {}, redis.call('EXISTS', holders) == 1
for i, key in ipairs(keys) do
  running[i] = counted and redis.call('ZLEXCOUNT', holders, lane_range(key)) or 0
end
local blocker, due, blocks = {}, {}, redis.call('EXISTS', blockers) == 1
for i, key in ipairs(keys) do
  first_of, last_of = lane_range(key)
  local entry = blocks and redis.call('ZRANGEBYLEX', blockers, first_of, last_of, 'LIMIT', 0, 1)[1]
  local _, _, id = key_of(entry or '')
  blocker[i], due[i] = id or '', id and redis.call('ZSCORE', bucket, id) or ''
end
return {'ok', now, keys, waiting, first, set, ends(held), ends(parked), running, blocker, due}
