
-- take_list: takes jobs without a key, of handoff and ready.
-- Gives: dry alone take_list
-- Expects: limit free lease_end has_key anchor ids records seen got looked read busy more look_up
-- Expects: start put_stray ready handoff leases
--
-- An ID counts only if it has a record and is in neither bucket nor leases nor dead. All others are
-- leftovers of a cancel, a reschedule or a second push, and are dropped here. So is the empty ID,
-- which is only a wake-up. At most 1,000 IDs are looked at.

local dry = limit <= 0 -- both lists are known to be empty

-- Nearly always no lease has that end yet. Then this call has leased all jobs that have it
-- afterwards, and no ID needs a look-up beforehand.
local alone = limit >= 8 and redis.call('ZCOUNT', leases, lease_end, lease_end) == 0

-- own keeps those of the first n IDs that this call has leased, each once. The others already had a
-- lease, and still have it.
local function own(n)
  local ends, kept, met = redis.call('ZMSCORE', leases, unpack(ids, 1, n)), 0, {}
  for i = 1, n do
    if ends[i] and tonumber(ends[i]) == tonumber(lease_end) and not met[ids[i]] then
      kept = kept + 1
      met[ids[i]], ids[kept], records[kept] = true, ids[i], records[i]
    end
  end
  for i = n, kept + 1, -1 do
    ids[i], records[i] = nil, nil
  end
  return kept
end

-- taken reports whether this call has taken a job of that ID already.
local function taken(id)
  for _, other in ipairs(ids) do
    if other == id then
      return true
    end
  end
  return false
end

-- head reads the first IDs of both lists. It returns them, and how many are of handoff.
local function head(most)
  local waiting = redis.call('LRANGE', handoff, 0, most - 1)
  local handed = #waiting
  if handed == 0 then
    return redis.call('LRANGE', ready, 0, most - 1), 0
  elseif handed < most then
    for i, id in ipairs(redis.call('LRANGE', ready, 0, most - handed - 1)) do
      waiting[handed + i] = id
    end
  end
  return waiting, handed
end

-- take_list takes jobs until this call has got so many. laned: keys take turns.
local function take_list(most_jobs, laned)
  while got < most_jobs and looked < 1000 and not busy and not more and not dry do
    -- Everything is read before anything is written, so a key of a wrong type costs no ID. Many
    -- more leftovers can follow the first ones.
    local most = looked == 0 and most_jobs or math.min(math.max(most_jobs - got, 64), 1000 - looked)
    local waiting, handed = head(most)
    if #waiting == 0 then
      dry = true
      break
    end
    local n, delayed, buried, leased, found =
      look_up(waiting, most_jobs - got, not alone, read > 0)
    local used, before = 0, got
    local jobs, size, list, contents, blind = got, read, ids, records, alone
    local grants, granted = {'NX', '+inf', anchor()}, 3
    for i = 1, n do
      local id, record = waiting[i], found[i]
      if jobs == most_jobs then
        break
      end
      local new = record and not delayed[i] and not buried[i]
        and (blind or not leased[i] and not seen[id])
      if new and laned and has_key(record) then
        if not (blind and redis.call('ZSCORE', leases, id)) then
          put_stray(id, record)
        end
      elseif new then
        busy = jobs >= free and (string.byte(record, 10) or 0) % 2 == 1
          and not (blind and (redis.call('ZSCORE', leases, id) or taken(id)))
        if busy then
          break
        end
        jobs = jobs + 1
        list[jobs], contents[jobs] = id, record
        size = size + #record
        if not blind then
          seen[id] = true
        end
        grants[granted + 1], grants[granted + 2] = lease_end, id
        granted = granted + 2
      end
      used = i
    end
    got, read = jobs, size
    more = n < #waiting and got < most_jobs and not busy
    dry = #waiting < most and used == #waiting
    looked = looked + used
    if handed > 0 then
      redis.call('LTRIM', handoff, math.min(used, handed), -1)
    end
    if used > handed then
      redis.call('LTRIM', ready, used - handed, -1)
    end
    if got > before then -- after a deletion, so the script can write at maxmemory
      start(got)
      redis.call('ZADD', leases, unpack(grants))
      if alone and redis.call('ZCOUNT', leases, lease_end, lease_end) < got then
        got = own(got)
        -- One leftover can precede many: from here on each ID is looked up before it is leased.
        alone, busy = false, false
      end
    end
  end
end
