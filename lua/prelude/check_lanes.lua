
-- check_lanes: finds what is wrong with the lanes of keys, their turns and their blockers.
-- Gives: passes seats lanes blocks
-- Expects: key_of of_record offer rouse unblock part found entries read pool bucket leases dead
-- Expects: ready turn lane keyed held parked blockers
--
-- no_record, two_places and orphan (of a former job with that ID) are findings about an entry,
-- no_lane about a job whose place is not in keyed. no_turn is a key whose jobs wait, and which is
-- in neither turn nor held nor parked. An orphan in blockers is of a job that is neither delayed
-- nor dead, or has another place. unreadable is a malformed entry or pass.

-- passes finds passes that no take can have written.
local function passes()
  for i = 1, #entries, 2 do
    local pass = tonumber(entries[i + 1])
    local readable = pass and math.abs(pass) <= 9007199254740992
    if not readable and found(part, entries[i], 'unreadable', true) then
      redis.call('ZREM', turn, entries[i]) -- the scan of lane adds it again
    end
  end
end

-- seats finds places of no job. Whether a place is that of the present job is checked with the
-- records.
local function seats()
  for i = 1, #entries, 2 do
    local id, place = entries[i], entries[i + 1]
    local what = not key_of(place) and 'unreadable'
    if redis.call('HEXISTS', pool, id) == 0 then
      what = not redis.call('ZSCORE', leases, id) and 'orphan'
    end
    if what and found(part, id, what, true) then
      redis.call('ZREM', lane, place .. id)
      redis.call('HDEL', keyed, id)
    end
  end
end

-- unlaned returns what is wrong with an entry of lane: a finding and the key that it is about.
local function unlaned(place, id)
  local noted = redis.call('HGET', keyed, id)
  if noted == place and redis.call('HEXISTS', pool, id) == 1 then
    return nil
  end
  local record = redis.call('HGET', pool, id)
  read = read + #(record or '')
  if not record then
    return 'no_record', part
  elseif not of_record(place, record) then
    return 'orphan', part
  elseif noted and of_record(noted, record) and redis.call('ZSCORE', lane, noted .. id) then
    return 'two_places', part
  end
  return 'no_lane', 'keyed'
end

-- lanes checks the entries of lane: their jobs, their keys' turns, and that they have no other
-- place.
local function lanes()
  local placed, list, queued, asked = {}, {}, {}, {}
  for i = 1, #entries, 2 do
    local entry = entries[i]
    local key, place, id = key_of(entry)
    local what, where = 'unreadable', part
    if key then
      what, where = unlaned(place, id)
    end
    if not what or what == 'no_lane' then
      placed[#placed + 1], list[#list + 1] = entry, id
      if not asked[key] then
        asked[key] = true
        queued[#queued + 1] = key
      end
    end
    if what and found(where, id or entry, what, true) then
      if what == 'no_lane' then
        redis.call('HDEL', keyed, '') -- after a deletion, the script can write at maxmemory
        redis.call('HSET', keyed, id, place)
      else
        redis.call('ZREM', lane, entry)
      end
    end
  end
  for first = 1, #list, 1000 do
    local last = math.min(first + 999, #list)
    local delayed = redis.call('ZMSCORE', bucket, unpack(list, first, last))
    local leased = redis.call('ZMSCORE', leases, unpack(list, first, last))
    local buried = redis.call('ZMSCORE', dead, unpack(list, first, last))
    for i = first, last do
      local n = i - first + 1
      local other = delayed[n] or leased[n] or buried[n]
      if other and found(part, list[i], 'two_places', true) then
        redis.call('ZREM', lane, placed[i])
      end
    end
  end
  for first = 1, #queued, 1000 do
    local some = {unpack(queued, first, math.min(first + 999, #queued))}
    local passed = redis.call('ZMSCORE', turn, unpack(some))
    local stopped = redis.call('ZMSCORE', held, unpack(some))
    local limited = redis.call('ZMSCORE', parked, unpack(some))
    for i, key in ipairs(some) do
      local waits = passed[i] or stopped[i] or limited[i]
      if not waits and found('turn', key, 'no_turn', true) then
        offer(turn, {key})
        rouse(ready, 1)
      end
    end
  end
end

-- blocks finds entries of jobs for which no key has to wait.
local function blocks()
  for i = 1, #entries, 2 do
    local key, place, id = key_of(entries[i])
    local what = not key and 'unreadable'
    local known = key and redis.call('HGET', keyed, id) == place
    if key and not (known and (redis.call('ZSCORE', bucket, id) or redis.call('ZSCORE', dead, id)
      or redis.call('ZSCORE', leases, id))) then
      what = 'orphan'
    end
    if what and found(part, id or entries[i], what, true) then
      if key then
        unblock(blockers, parked, turn, lane, ready, {id}, {place})
      else
        redis.call('ZREM', blockers, entries[i])
      end
    end
  end
end
