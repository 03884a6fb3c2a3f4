
-- Gives: laned to_lane enlane
-- Expects: has_key place_of place_rest now offer rouse

-- The jobs with keys that a call stores.
local laned = {}

-- to_lane notes a job that is to have a place in the lane of its key. It reports whether the job
-- has a key.
local function to_lane(id, record, due)
  if not has_key(record) then
    return false
  end
  laned[#laned + 1] = {id, record, due}
  return true
end

-- enlane gives the jobs that to_lane has noted their places, and those that are due now a place in
-- line: first their keys get turns, which are hints, then the jobs enter lane, and then keyed. kept
-- has the former places of jobs that keep their order. It returns how many are due now.
local function enlane(turn, lane, keyed, sizes, ready, kept)
  if #laned == 0 then
    return 0
  end
  local number = redis.call('HINCRBY', sizes, 'number', #laned) - #laned
  local entries, n, places, keys, seen = {}, 0, {}, {}, {}
  for i = 1, #laned do
    local job = laned[i]
    local id, record, due = job[1], job[2], job[3]
    local place, old = place_of(record, due, number + i), kept and kept[id]
    local rest = #place - place_rest -- the length of the key, and the key
    if old and #old == #place and string.sub(old, 1, rest) == string.sub(place, 1, rest)
      and string.sub(old, -16, -9) == string.sub(place, -16, -9) then
      place = string.sub(old, 1, -9) .. string.sub(place, -8)
    end
    places[2 * i - 1], places[2 * i] = id, place
    if due <= now then
      local key = string.sub(place, 2, rest)
      entries[n + 1], entries[n + 2] = '0', place .. id
      n = n + 2
      if not seen[key] then
        seen[key], keys[#keys + 1] = true, key
      end
    end
  end
  if n > 0 then
    offer(turn, keys)
    redis.call('ZADD', lane, unpack(entries))
  end
  redis.call('HSET', keyed, unpack(places))
  if n > 0 then
    rouse(ready, n / 2)
  end
  return n / 2
end
