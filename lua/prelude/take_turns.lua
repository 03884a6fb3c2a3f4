
-- take_turns: serves the keys whose turn it is.
-- Gives: serve
-- Expects: limit free groups batch lease_end by_key lane_of place_rest whole_pass text_of holder_of
-- Expects: anchor ids records seen got looked read busy more look_up start stray book
-- Expects: wait_of delays spend heads leases turn lane
--
-- While turn or held exists, keys take turns: those with the lowest passes are served, each with
-- its share of at most 250 jobs by its weight, and its pass grows by its jobs divided by its
-- weight. The IDs in handoff and ready are served as one more key, the empty one.

-- candidates reads the first entries of the lanes of keys. open is how many jobs may come of all of
-- them, and want those with the ones of the empty key. It returns their IDs, these entries, the
-- index of the key of each, and which keys have more entries (nil: not looked at).
local function candidates(open, want, names, weights, total, rations)
  local waiting, entries, owner, more_of, n = {}, {}, {}, {}, 0
  local sub, marks = string.sub, {} -- by the length of a key: with what its entries begin
  local weight, part, most, text
  for i = 1, #names do
    local key, r = names[i], rations[i]
    if weights[i] ~= weight then
      weight = weights[i]
      part = groups > 0 and batch or math.ceil(want * weight / total)
    end
    local share = part < open and part or open
    if r and r.room < share then
      share = r.room
    end
    if key ~= '' and share > 0 then
      if share ~= most then -- Redis takes longer to read a number than a text
        most, text = share, string.format('%d', share + 1)
      end
      local size = #key
      local mark = marks[size]
      if not mark then
        mark = sub(lane_of(key), 1, 1)
        marks[size] = mark
      end
      -- One more than the share of a key shows whether others follow.
      local list = redis.call('ZRANGEBYLEX', lane, '[' .. mark .. key, '(' .. mark .. key .. 'g',
        'LIMIT', '0', text)
      local found, cut = #list, size + place_rest + 2
      more_of[i] = found > share
      if found > share then
        found = share
      end
      for k = 1, found do
        local entry = list[k]
        n = n + 1
        waiting[n], entries[n], owner[n] = sub(entry, cut), entry, i
      end
      open = open - found
    end
  end
  return waiting, entries, owner, more_of
end

-- pass_on ends the turns of the keys that have no more jobs, and gives those of which jobs were
-- taken their next ones. The turns of the keys in stays do not end.
local function pass_on(names, passes, weights, taken_of, more_of, stays)
  local later, m, over = {}, 0, {}
  local from, weight, jobs, text
  for i = 1, #names do
    if more_of[i] then
      local n = taken_of[i]
      if n then
        if n ~= jobs or passes[i] ~= from or weights[i] ~= weight then -- many keys are alike
          from, weight, jobs = passes[i], weights[i], n
          text = text_of(whole_pass(from + n / weight))
        end
        later[m + 1], later[m + 2] = text, names[i]
        m = m + 2
      end
    elseif more_of[i] == false and not stays[names[i]] then
      over[#over + 1] = names[i]
    end
  end
  if m > 0 then
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
  local total, list_at = 0, nil
  for i = 1, #names do
    total = total + weights[i]
    if names[i] == '' then
      list_at = i
    end
  end

  local plain, list_pass = 0, nil
  if list_at then
    plain, list_pass = math.ceil(want * weights[list_at] / total), passes[list_at]
    plain = groups > 0 and math.min(want, batch) or plain
  end
  local waiting, entries, owner, more_of =
    candidates(want - plain, want, names, weights, total, rations)

  local taken_of, gone, sub = {}, 0, string.sub
  local grants, granted, strays = {'NX', '+inf', anchor()}, 3, {}
  local holding = {} -- the new entries of holders
  local found
  if #waiting > 0 then
    local n, delayed, buried, leased
    n, delayed, buried, leased, found = look_up(waiting, want - plain, true)
    for i = 1, n do
      local id, record, key, entry = waiting[i], found[i], owner[i], entries[i]
      local apart = not record or delayed[i] or buried[i] or leased[i] or seen[id]
      if not apart and sub(entry, -#id - 8, -#id - 1) == sub(record, 1, 8) then -- the same nonce
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
        local r = rations[key]
        if r and r.counts then
          holding[#holding + 1], holding[#holding + 2] = 0, holder_of(names[key], id)
        end
        local wait = r and r.pace and spend(r.pace, wait_of(got)) or 0
        if wait > 0 then
          delays[got] = wait
        end
      elseif not apart then
        strays[#strays + 1] = i
      end
    end
    gone = n
    more = n < #waiting and not busy
    for i = n + 1, #waiting do
      more_of[owner[i]] = true
    end
  end
  looked = looked + gone

  -- Leases come first. An entry that stays beside its lease is dropped later.
  if got > before then
    redis.call('ZREM', lane, '') -- after a deletion, the script can write at maxmemory
    start(got)
    if by_key then
      book(names, rations, taken_of, holding)
    end
    redis.call('ZADD', leases, unpack(grants))
  end
  if gone > 0 then
    redis.call('ZREM', lane, unpack(entries, 1, gone))
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
