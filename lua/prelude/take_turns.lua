
-- take_turns: serves the keys whose turn it is.
-- Gives: serve
-- Expects: limit free groups batch lease_end by_key lane_range of_record place_rest whole_pass
-- Expects: holder_of anchor ids records seen got looked read busy more look_up start stray book
-- Expects: wait_of delays spend heads leases turn lane
--
-- While turn or held exists, keys take turns: those with the lowest passes are served, each with
-- its share of at most 250 jobs by its weight, and its pass grows by its jobs divided by its
-- weight. The IDs in handoff and ready are served as one more key, the empty one.

-- candidates reads the first entries of the lanes of keys. open is how many jobs may come of all of
-- them, and want those with the ones of the empty key. It returns their IDs, the entries before
-- these, the index of the key of each, and which keys have more entries (nil: not looked at).
local function candidates(open, want, names, weights, total, rations)
  local waiting, places, owner, more_of = {}, {}, {}, {}
  for i, key in ipairs(names) do
    local share = math.min(open, groups > 0 and batch or math.ceil(want * weights[i] / total))
    share = math.min(share, rations[i] and rations[i].room or share)
    if key ~= '' and share > 0 then
      local from, to = lane_range(key)
      -- One more than the share of a key shows whether others follow.
      local entries = redis.call('ZRANGEBYLEX', lane, from, to, 'LIMIT', 0, share + 1)
      more_of[i] = #entries > share
      local cut = 1 + #key + place_rest
      for j = 1, math.min(share, #entries) do
        local n = #waiting + 1
        waiting[n], places[n] = string.sub(entries[j], cut + 1), string.sub(entries[j], 1, cut)
        owner[n] = i
      end
      open = open - math.min(share, #entries)
    end
  end
  return waiting, places, owner, more_of
end

-- pass_on ends the turns of the keys that have no more jobs, and gives those of which jobs were
-- taken their next ones. The turns of the keys in stays do not end.
local function pass_on(names, passes, weights, taken_of, more_of, stays)
  local later, over = {}, {}
  for i, key in ipairs(names) do
    if more_of[i] then
      if taken_of[i] then
        local m = #later + 1
        later[m] = string.format('%.17g', whole_pass(passes[i] + taken_of[i] / weights[i]))
        later[m + 1] = key
      end
    elseif more_of[i] == false and not stays[key] then
      over[#over + 1] = key
    end
  end
  if #later > 0 then
    redis.call('ZADD', turn, unpack(later))
  end
  if #over > 0 then
    redis.call('ZREM', turn, unpack(over))
  end
end

-- serve takes jobs of the keys whose turn it is. It returns how many are to come from handoff and
-- ready, and the pass of the empty key, if it is that key's turn.
local function serve()
  local before, want = got, limit - got
  local names, passes, weights, rations = heads(groups > 0 and groups or want)
  local total = 0
  for i = 1, #names do
    total = total + weights[i]
  end

  local plain, list_pass = 0, nil
  for i, key in ipairs(names) do
    if key == '' then
      plain, list_pass = math.ceil(want * weights[i] / total), passes[i]
      plain = groups > 0 and math.min(want, batch) or plain
    end
  end
  local waiting, places, owner, more_of =
    candidates(want - plain, want, names, weights, total, rations)

  local taken_of, gone = {}, {}
  local grants, granted, strays = {'NX', '+inf', anchor()}, 3, {}
  local holding = {} -- the new entries of holders
  local found
  if #waiting > 0 then
    local n, delayed, buried, leased
    n, delayed, buried, leased, found = look_up(waiting, want - plain, true)
    for i = 1, n do
      local id, record, key = waiting[i], found[i], owner[i]
      local apart = not record or delayed[i] or buried[i] or leased[i] or seen[id]
      if not apart and of_record(places[i], record) then
        busy = got >= free and (string.byte(record, 10) or 0) % 2 == 1
        if busy then
          n = i - 1
          break
        end
        got = got + 1
        ids[got], records[got], seen[id] = id, record, true
        read = read + #record
        grants[granted + 1], grants[granted + 2] = lease_end, id
        granted = granted + 2
        taken_of[key] = (taken_of[key] or 0) + 1
        local r = rations[key] or {}
        if r.counts then
          holding[#holding + 1], holding[#holding + 2] = 0, holder_of(names[key], id)
        end
        local wait = r.pace and spend(r.pace, wait_of(got)) or 0
        if wait > 0 then
          delays[got] = wait
        end
      elseif not apart then
        strays[#strays + 1] = i
      end
      gone[#gone + 1] = places[i] .. id
    end
    more = n < #waiting and not busy
    for i = n + 1, #waiting do
      more_of[owner[i]] = true
    end
  end
  looked = looked + #gone

  -- Leases come first. An entry that stays beside its lease is dropped later.
  if got > before then
    redis.call('ZREM', lane, '') -- after a deletion, the script can write at maxmemory
    start(got)
    if by_key then
      book(names, rations, taken_of, holding)
    end
    redis.call('ZADD', leases, unpack(grants))
  end
  if #gone > 0 then
    redis.call('ZREM', lane, unpack(gone))
  end
  -- An entry of a former job with that ID. A client of the release before may have enqueued it.
  local stays = {}
  for _, i in ipairs(strays) do
    if not seen[waiting[i]] then -- otherwise this call has taken it by another entry
      stays[stray(waiting[i], found[i]) or ''] = true
    end
  end
  pass_on(names, passes, weights, taken_of, more_of, stays)
  return plain, list_pass
end
