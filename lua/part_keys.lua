-- part_keys: looks which keys stay in a closed place (see prelude/staying.lua): some of the jobs of
-- a pass, which looks at all of them.
--
-- KEYS[1]  keyed    hash, job ID to its place in a lane
-- KEYS[2]  next     hash, running job ID to the successor that it will have
-- KEYS[3]  holders  zset, key and ID of every running job whose key has a limit of running jobs
-- KEYS[4]  rates    zset, key scored by its tat (Unix µs)
-- KEYS[5]  held     zset, key scored by the end of its hold (Unix ms)
-- KEYS[6]  staying  zset, key of a closed place scored by the pass that has found it last
-- KEYS[7]  parts    hash, the map of the partitions of the topic
-- ARGV[1]  count    how many jobs to look at, about
--
-- A key stays while it has an unfinished job, a successor, a run whose job was cancelled or
-- replaced, or starts that its rate counts. One that has had one of these stays while it has a hold
-- that ends, too: a handler can have asked for it here alone. Each pass looks at these in turn, in
-- the order in which what belongs to a job goes from one to the next, so that it misses none. Keys
-- that it has not found are removed when it ends. The first pass finds the keys, and later ones
-- only find them again: a job of a schedule, or one that its handler enqueues again with another
-- key, brings none.
--
-- The field keys of parts has how far the pass has come: the number of what it looks at, the
-- cursor, and the ID of the run of Redis, because a cursor means nothing to another one. Then the
-- pass begins anew. If the user may not send INFO, the ID is -, and no call goes on with a cursor:
-- a pass ends only if the place has so little that a call looks at all of it. Safe to send twice.
-- Returns {'ok', now, answer}: more, over if the pass has ended, or none if no key stays.
-- Cost: O(count × log N).
-- Uses: now place holder successor
local keyed, next, holders, rates, held = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local staying, parts = KEYS[6], KEYS[7]
local count = tonumber(ARGV[1])

local pass = tonumber(redis.call('ZSCORE', staying, '') or nil)
local known = redis.call('HGET', parts, 'keys') or ''
-- A wrong type must cause an error before anything is written.
redis.call('HLEN', keyed)
redis.call('HLEN', next)
redis.call('ZCARD', holders)
redis.call('ZCARD', rates)
redis.call('ZCARD', held)
if not pass then
  return {'ok', now, 'none'}
end
local info = redis.pcall('INFO', 'server')
local run = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or '-'
local stage, cursor, begun = string.match(known, '^(%d+) (%d+) (%S+)$')
stage = tonumber(stage)
if begun ~= run or run == '-' and cursor ~= '0' then
  stage, cursor = 1, '0'
end

local looks = {
  {'HSCAN', next, 10, function(_, entry)
    local _, _, record = successor_of(entry)
    return record and has_key(record) and string.sub(record, 28, 27 + string.byte(record, 27))
  end},
  {'HSCAN', keyed, count, function(_, spot)
    return key_of(spot)
  end},
  {'ZSCAN', holders, count, function(entry)
    local key = string.sub(entry, 2, 1 + (string.byte(entry) or 0))
    return (till_of(key, entry) or 0) > now and key
  end},
  {'ZSCAN', rates, count, function(key, tat)
    return tonumber(tat) > now * 1000 and key
  end},
  {'ZSCAN', held, count, function(key, ending) -- a pause is everywhere, and may not end
    return tonumber(ending) > now and tonumber(ending) < 9999999999999 and key
  end},
}

redis.call('HDEL', parts, '') -- after a deletion, the script can write at maxmemory
local answer = 'more'
if looks[stage] then
  local command, of, most, read = unpack(looks[stage])
  local page = redis.call(command, of, cursor, 'COUNT', most)
  local seen, list = {}, {pass == 1 and of ~= held and 'NX' or 'XX'}
  for i = 1, #page[2], 2 do
    local key = read(page[2][i], page[2][i + 1])
    if key and key ~= '' and not seen[key] then
      seen[key] = true
      list[#list + 1], list[#list + 2] = pass, key
    end
    if #list > 900 or i + 1 == #page[2] and #list > 1 then
      redis.call('ZADD', staying, unpack(list))
      list = {list[1]}
    end
  end
  cursor = page[1]
  if cursor == '0' then
    stage = stage + 1
  elseif run == '-' then
    answer = 'over'
  end
  if not looks[stage] then
    pass = pass + 1
    redis.call('ZADD', staying, pass, '')
  end
else
  local bound = string.format('(%.0f', pass - 1)
  local gone = redis.call('ZRANGEBYSCORE', staying, '-inf', bound, 'LIMIT', 0, count)
  if #gone > 0 then
    redis.call('ZREM', staying, unpack(gone))
  end
  if #gone < count then
    stage, answer = 1, 'over'
  end
  if answer == 'over' and redis.call('ZCARD', staying) == 1 then
    redis.call('ZREM', staying, '')
    redis.call('HDEL', parts, 'keys')
    return {'ok', now, 'none'}
  end
end
redis.call('HSET', parts, 'keys', string.format('%.0f ', stage) .. cursor .. ' ' .. run)
return {'ok', now, answer}
