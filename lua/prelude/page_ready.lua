
-- page_ready: where the place of a walk through ready is now, although jobs have been taken since.
-- Gives: near gone reclaimed found
-- Expects: walk words at ready stats
--
-- The place has the number of entries in front of it; how much closer to the head it is looked for,
-- 0; the number of jobs taken less those returned by then, and of those reclaimed; and the IDs of
-- its neighbours: how many are in front, at most eight on each side. It moves towards the head as
-- jobs are taken. If it is not within 512 entries of where it should be, it is lost. A place
-- without neighbours is where it should be.

local near, window, few = 8, 512, 16

-- A job that leaves ready at the head moves the others, and one that returns there too. These
-- counters have nearly all such moves. Some of the reclaimed jobs go to bucket.
local moves = walk == 'ready' and redis.call('HMGET', stats, 'taken', 'returned', 'reclaimed') or {}
local gone = (tonumber(moves[1] or 0) or 0) - (tonumber(moves[2] or 0) or 0)
local reclaimed = tonumber(moves[3] or 0) or 0

-- found returns how many entries of ready are in front of the place, or nil if its neighbours are
-- not near. A neighbour that is further from the head than it can be is not where it was: it was
-- pushed again at the tail. If two have moved by the same few entries, something was pushed at the
-- head that no counter has.
local function found()
  local fronts, last = tonumber(words[at + 4]), #words
  local border = at + 5 + fronts
  local behind = last - border + 1
  local expected = tonumber(words[at]) - gone + tonumber(words[at + 2])
  local pushed = math.max(0, reclaimed - tonumber(words[at + 3]))
  local middle = expected - tonumber(words[at + 1])
  if expected + behind <= 0 then
    return 0 -- all of them have been taken
  elseif fronts + behind == 0 then
    return math.min(expected, redis.call('LLEN', ready))
  elseif middle + window < 0 then
    return nil -- closer than the head
  end
  local should = {}
  for i = at + 5, last do
    if words[i] ~= '' then -- a wake-up can be anywhere, and so can an ID that occurs twice
      should[words[i]] = should[words[i]] == nil and expected + i - border
    end
  end
  -- Usually they are just there.
  if expected > 0 and behind > 0 and fronts > 0 then
    local two = redis.call('LRANGE', ready, expected - 1, expected)
    if two[1] == words[border - 1] and two[2] == words[border] then
      return expected
    end
  end
  local low, candidates, shifts, best, shifted = math.max(0, middle - window), {}, {}, nil, nil
  for i, id in ipairs(redis.call('LRANGE', ready, low, middle + window)) do
    local shift = should[id] and low + i - 1 - should[id]
    if shift and shift <= pushed then
      candidates[#candidates + 1] = {low + i - 1, should[id] >= expected, shift}
      best = math.max(best or shift, shift)
    elseif shift and shift <= pushed + few then
      shifted = shifted or shifts[shift] and expected + shift
      shifts[shift] = true
    end
  end
  -- The shifts differ by the entries that were removed between the neighbours.
  local front
  for _, one in ipairs(candidates) do
    if one[3] >= best - few and one[2] then
      return one[1]
    elseif one[3] >= best - few then
      front = one[1] + 1
    end
  end
  return front or shifted
end
