
-- Gives: blocking unblock
-- Expects: key_of free_keys rouse

-- blocking lists those jobs with places that are blockers, and their keys.
local function blocking(blockers, ids, places)
  local entries, owners, some, keys = {}, {}, {}, {}
  for i, id in ipairs(ids) do
    if places[i] then
      entries[#entries + 1], owners[#owners + 1] = places[i] .. id, i
    end
  end
  if #entries > 0 and redis.call('EXISTS', blockers) == 1 then
    for n, score in ipairs(redis.call('ZMSCORE', blockers, unpack(entries))) do
      if score then
        some[#some + 1], keys[#keys + 1] = entries[n], key_of(entries[n])
      end
    end
  end
  return some, keys
end

-- unblock removes jobs from blockers. Their keys get turns if they are parked. It returns how many
-- keys with waiting jobs have got one.
local function unblock(blockers, parked, turn, lane, ready, ids, places)
  local some, keys = blocking(blockers, ids, places)
  if #some == 0 then
    return 0
  end
  redis.call('ZREM', blockers, unpack(some))
  local stopped, seen = {}, {}
  for i, score in ipairs(redis.call('ZMSCORE', parked, unpack(keys))) do
    if score and not seen[keys[i]] then
      seen[keys[i]], stopped[#stopped + 1] = true, keys[i]
    end
  end
  if #stopped == 0 then
    return 0
  end
  local n = math.min(#stopped, free_keys(parked, turn, lane, stopped, true))
  rouse(ready, n)
  return n
end
