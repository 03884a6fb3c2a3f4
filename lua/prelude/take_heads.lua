
-- take_heads: finds the keys whose turn it is.
-- Gives: heads
-- Expects: now enough within groups limited by_key rule_of lane_range key_of key_running key_emit
-- Expects: key_burst looked ordered ration text_of seat_of facts_of lag_of keep_lags turn lane
-- Expects: rules held parked lags
--
-- A key that is held loses its turn. So does a key that has reached one of its limits, but only if
-- its turn has come: it gets an entry in parked for it. It is the next one again as soon as one of
-- its jobs ends and unpark finds that, and gets back the pass that it had. At the latest promote
-- gives it its turn: at its next start, or when the first lease of its running jobs ends. A key
-- that has just joined gets its first pass here, as if it had had a job: the others get their
-- shares first.
--
-- Jobs of a key are gathered from the due time of its first one on. Meanwhile the key is parked.

-- due_of returns when the job of an entry in lane was due.
local function due_of(entry)
  local _, spot = key_of(entry)
  local ahead = tonumber(string.sub(spot, -16, -9), 16) or 2147483648
  return (tonumber(string.sub(spot, -37, -27), 16) or 0) + ahead - 2147483648
end

-- complete returns nil if the jobs of a key make a batch, and otherwise when they do. noted is what
-- it was before a job has joined, if that is known: a job that comes before the others by its head
-- start does not make them wait again.
local function complete(key, noted)
  local from, to = lane_range(key)
  local entry = redis.call('ZRANGEBYLEX', lane, from, to, 'LIMIT', 0, 1)[1]
  if not entry or redis.call('ZLEXCOUNT', lane, from, to) >= enough then
    return nil
  end
  local begin = due_of(entry)
  if begin + within > now and not noted then
    local entries = redis.call('ZRANGEBYLEX', lane, from, to, 'LIMIT', 0, enough)
    for i = 2, #entries do
      begin = math.min(begin, due_of(entries[i]))
    end
  end
  local till = math.min(begin + within, tonumber(noted or nil) or math.huge)
  return till > now and till or nil
end

-- portion reads some keys in turn from a rank on, with their passes, and whether one of them has
-- just joined. Often all have the same pass, and a range is cheaper without scores.
local function portion(from, most)
  local keys, passes, joined = redis.call('ZRANGE', turn, from, from + most - 1), {}, false
  local n = #keys
  if n == 0 then
    return keys, passes, joined
  end
  local list = redis.call('ZMSCORE', turn, keys[1], keys[n])
  local same = list[1] == list[2]
  list = same and list or redis.call('ZMSCORE', turn, unpack(keys))
  local text, value
  for i = 1, n do
    if not same and list[i] ~= text or i == 1 then
      text, value = list[i], tonumber(list[i])
      joined = joined or seat_of(value, 1)
    end
    passes[i] = value
  end
  return keys, passes, joined
end

-- leave ends the turns of keys, parks those of them that wait, and gives others their first passes.
-- behind has the passes of those that their limits stop. over lists keys that are no longer late,
-- and late those that are served, with the passes that they get back.
local function leave(stopped, waits, seats, behind, over, late)
  if #waits + #seats + #late > 0 then -- after a deletion, the script can write at maxmemory
    redis.call('ZREM', lane, '')
  end
  if #waits > 0 then -- first: if parked is of a wrong type, no key loses its turn
    redis.call('ZADD', parked, unpack(waits))
    limited = by_key and 2 or 3
  end
  if #stopped > 0 then
    redis.call('ZREM', turn, unpack(stopped))
  end
  if #seats > 0 then
    redis.call('ZADD', turn, unpack(seats))
  end
  if #late > 0 then
    redis.call('ZADD', turn, unpack(late))
  end
  keep_lags(behind, over)
end

-- heads returns the first keys in turn that are not held and whose limits are not reached, at most
-- want, with their passes, their weights and, if limits of keys are in force, their rations. The
-- keys that it has found keep the first ranks, so it goes on behind them.
local function heads(want)
  local names, passes, weights, rations = {}, {}, {}, {}
  local sure, pace, origin = 0, 0, 0 -- how many jobs the keys so far get before a pass
  local skipped, over = 0, false
  while #names < want and looked < 1000 and not over do
    local most = math.min(250, math.max(want - #names, skipped))
    local keys, turns, joined = portion(#names, most)
    local ruled, held_till = facts_of('HMGET', rules, keys), facts_of('ZMSCORE', held, keys)
    local parked_till = joined and facts_of('ZMSCORE', parked, keys) or {}
    local was = by_key and facts_of('ZMSCORE', lags, keys) or {}
    local stopped, waits, seats, first_seat = {}, {}, {}, math.huge
    local behind, served, late = {}, {}, {}
    local n, seat, from, noted, heavy = #names, nil, nil, nil, nil
    for i = 1, #keys do
      local key, mine = keys[i], turns[i]
      if n == want or looked >= 1000 or over or mine >= first_seat then
        break
      end
      local weight, running, period, size = 1, key_running, key_emit, key_burst
      if ruled[i] then
        weight, running, period, size = rule_of(ruled[i], key_running, key_emit, key_burst)
      end
      running = ordered and 1 or running
      if joined and (mine ~= noted or weight ~= heavy) then
        noted, heavy, seat, from = mine, weight, seat_of(mine, weight)
      end
      if held_till[i] and (tonumber(held_till[i]) or 0) > now then
        stopped[#stopped + 1] = key
        looked = looked + 3 -- as much work as that many IDs, here and below
      elseif seat and not parked_till[i] then
        seats[#seats + 1], seats[#seats + 2] = text_of(seat), key
        served[#served + 1] = was[i] and key or nil
        first_seat, looked = math.min(first_seat, seat), looked + 4
      else
        local r = by_key and key ~= '' and (running > 0 or period > 0)
          and ration(key, running, period, size) or nil
        local till = r and r.room <= 0 and r.till or groups > 0 and key ~= ''
          and complete(key, not r and parked_till[i])
        local score, lag = from or mine, was[i] and tonumber(was[i])
        if not till then
          n = n + 1
          if lag then
            served[#served + 1], score = key, lag_of(lag, score)
            late[#late + 1], late[#late + 2] = text_of(score), key
          end
          names[n], passes[n], weights[n] = key, score, weight
          if by_key then
            rations[n] = r or false
          end
          if r and r.room < math.huge then
            sure = sure + r.room
          else
            sure, pace, origin = sure + 1, pace + weight, origin + weight * score
          end
        elseif groups == 0 and not seat and sure + pace * mine - origin >= want then
          over = true -- its turn does not come in this take
        else
          stopped[#stopped + 1] = key
          waits[#waits + 1], waits[#waits + 2] = string.format('%.3f', till), key
          if r and r.room <= 0 then
            score = math.min(lag or score, score)
            behind[#behind + 1], behind[#behind + 2] = text_of(score), key
          end
          looked = looked + 13
        end
      end
    end
    leave(stopped, waits, seats, behind, served, late)
    skipped = skipped + #stopped + #seats / 2
    over = over or #keys < most and #seats == 0
  end
  return names, passes, weights, rations
end
