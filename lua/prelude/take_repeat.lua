
-- take_repeat: what a take gets of those before it whose replies were lost.
-- Gives: repeated
-- Expects: now count line_up rouse release answer note known limit bytes patience place ready
-- Expects: pool leases receipt stats turn lane keyed lease_end lane_of free_keys holders parked
--
-- A server without a reply asks again, with a new number and for fewer jobs. If one of the takes
-- since then was executed, its receipt names the jobs. As many as fit are returned, with a lease
-- that begins now. The others go back in their order, and no attempt is used up. Jobs that were
-- cancelled or replaced meanwhile are left out: no handler of them was ever called, so they give
-- their places up (see straggler). A request that arrives twice gets the first reply again, and
-- frees no place: it can be a late copy of one whose reply has arrived. Jobs that were to start one
-- after the other do so from now on. Their starts are counted already.

-- return_jobs ends leases. The jobs go back to ready, or into their lanes.
local function return_jobs(jobs)
  local plain = jobs
  if redis.call('EXISTS', keyed) == 1 then
    local laned
    laned, plain = line_up(turn, lane, keyed, jobs)
    if laned > 0 then
      rouse(ready, laned)
    end
  end
  if #plain > 0 and place == 'tail' then
    redis.call('RPUSH', ready, unpack(plain))
  elseif #plain > 0 then
    local reversed = {}
    for i, id in ipairs(plain) do
      reversed[#plain + 1 - i] = id
    end
    redis.call('LPUSH', ready, unpack(reversed))
  end
  release(leases, jobs)
  count(stats, 'returned', #jobs)
end

-- unstraggle frees the places that lost jobs of a take have kept until the end of its lease. With
-- pcall: holders and parked of a wrong type have no places and no keys.
local function unstraggle(ending, lost)
  local till = '1' .. string.format('%017.3f', tonumber(ending) or 0)
  local first = lane_of('') .. till
  local past = string.sub(first, 1, -2) .. string.char(string.byte(first, -1) + 1)
  local list, gone, keys = redis.pcall('ZRANGEBYLEX', holders, '[' .. first, '(' .. past), {}, {}
  for _, entry in ipairs(list) do
    local stop = #first + 1 + (string.byte(entry, #first + 1) or 0)
    local key, id = string.sub(entry, #first + 2, stop), string.sub(entry, stop + 1)
    if lost[id] then
      gone[#gone + 1], gone[#gone + 2] = entry, lane_of(key) .. till .. id
      local waits = key ~= '' and redis.pcall('ZSCORE', parked, key)
      keys[#keys + 1] = type(waits) == 'string' and key or nil
    end
  end
  for from = 1, #gone, 1000 do
    redis.call('ZREM', holders, unpack(gone, from, math.min(from + 999, #gone)))
  end
  if #keys > 0 then
    rouse(ready, free_keys(parked, turn, lane, keys, true))
  end
end

-- later_of reads the starts that are behind the first character of a field of the receipt, or
-- returns nil if there are none.
local function later_of(field)
  local starts
  for wait in string.gmatch(string.sub(field or '', 2), '%d+') do
    starts = starts or {}
    starts[#starts + 1] = tonumber(wait)
  end
  return starts
end

-- repeated replies to a take whose series has a receipt of a take since then; twice: it is that of
-- this very take. It returns nil if nothing is left of the jobs of the receipt.
local function repeated(twice)
  local kept = redis.call('LRANGE', receipt, 1, -1)
  local old_end, rest = table.remove(kept, 1), table.remove(kept, 1)
  local starts, patient = later_of(rest), string.sub(rest or '', 2, 2) == 'p'
  rest = string.sub(rest or '', 1, 1) == '1'
  if limit == 0 and twice then
    return {'returned', now, kept}
  end
  local mine, later, back, total, lost = {}, {}, {}, 0, nil
  local ends = #kept > 0 and redis.call('ZMSCORE', leases, unpack(kept)) or {}
  for i, id in ipairs(kept) do
    local ours = ends[i] and tonumber(ends[i]) == tonumber(old_end)
    local size = ours and redis.call('HSTRLEN', pool, id) or 0
    local fits = twice or #back == 0 and #mine < limit and (total == 0 or total + size <= bytes)
    if not ours then
      lost = lost or {}
      lost[id] = true
    elseif size > 0 and fits then
      total = total + size
      mine[#mine + 1] = id
      later[#mine] = starts and starts[i] or 0
    elseif size > 0 then
      back[#back + 1] = id
    end
  end
  if lost and not twice then
    unstraggle(old_end, lost)
  end
  if not twice then
    rest = #back > 0
    redis.call('ZREM', leases, '') -- after a deletion, the script can write at maxmemory
    if #back > 0 then
      return_jobs(back)
    end
    local grants = {}
    for _, id in ipairs(mine) do
      grants[#grants + 1] = lease_end
      grants[#grants + 1] = id
    end
    if #mine > 0 then
      redis.call('ZADD', leases, 'XX', unpack(grants))
      old_end = redis.call('ZSCORE', leases, mine[1]) -- as Redis writes it from now on
    end
    if limit == 0 then
      note(old_end, false, back)
      return {'returned', now, back}
    end
    note(old_end, rest, mine, starts and later, patient)
  end
  if #mine > 0 then
    return answer(old_end, mine, redis.call('HMGET', pool, unpack(mine)), rest, known(), nil,
      patient and 1000 * patience or nil, nil, starts and later)
  elseif twice then
    return {'empty', now, known()}
  end
end
