-- prelude: put before every script. The Redis clock, the receipts, the fence and the counters.
--
-- Nothing here reads KEYS or ARGV: a script hands over what it has named.

-- now is the Redis clock in Unix ms. All due times and lease ends are compared with it and with no other clock.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- stamp writes an instant with the 13 digits a record has room for.
local function stamp(ms)
  return string.format('%013.0f', ms)
end

-- A caller numbers the calls of a lane. When the reply of a call is lost and the call is sent again, replay finds the
-- number and the script answers as it did the first time. The receipt outlives every retry of the client.
local receipt_ms = 60000

local function replay(receipt, number)
  local kept = redis.call('GET', receipt)
  local head = number .. ':'
  if kept and string.sub(kept, 1, #head) == head then
    return string.sub(kept, #head + 1)
  end
  return nil
end

-- Receipts and counters are written with pcall and last: they never decide the fate of a job.
local function remember(receipt, number, reply)
  redis.pcall('SET', receipt, number .. ':' .. reply, 'PX', receipt_ms)
end

local function count(stats, field, n)
  if n > 0 then
    redis.pcall('HINCRBY', stats, field, n)
  end
end

-- owns tells whether a lease that ends at score (a string, or false when there is none) is the one that fence names.
-- A fence is one lease end, or two with a space between them while an extension is not known to have arrived.
local function owns(score, fence)
  if not score then
    return false
  end
  return score == fence or string.find(' ' .. fence .. ' ', ' ' .. score .. ' ', 1, true) ~= nil
end

-- append adds an entry to a job's error log: netstrings, at most eleven of them, the first and the newest ten.
local function append(log, entry)
  local starts, at = {}, 1
  log = log or ''
  while at <= #log do
    local colon = string.find(log, ':', at, true)
    local size = colon and tonumber(string.sub(log, at, colon - 1))
    if not size then
      break -- not ours: keep what can be read
    end
    starts[#starts + 1] = at
    at = colon + size + 1
  end
  if #starts > 10 then
    log = string.sub(log, 1, starts[2] - 1) .. string.sub(log, starts[3], at - 1)
  end
  return log .. #entry .. ':' .. entry
end

-- nudge tells the servers of a prefix about one job, or with an empty id about a topic.
local function nudge(channel, verb, topic, fence, id)
  redis.call('PUBLISH', channel, verb .. ' ' .. fence .. ' ' .. #topic .. ' ' .. topic .. id)
end

-- anchor is a member of leases while that has others. Redis keeps a small zset in a compact form in which every access walks the
-- whole of it; a long member makes it choose the other form, which is four times as fast with 64 leases. It is longer than an
-- id may be, and its score is +inf.
local anchor = string.rep('-', 1025)

-- grant gives leases: pairs of score and id.
local function grant(leases, pairs_of)
  redis.call('ZADD', leases, '+inf', anchor, unpack(pairs_of))
end

-- release ends leases, and takes the anchor away after the last one.
local function release(leases, ids)
  redis.call('ZREM', leases, unpack(ids))
  if redis.call('ZCARD', leases) == 1 and redis.call('ZSCORE', leases, anchor) then
    redis.call('DEL', leases)
  end
end

-- rows reads what the scripts that settle jobs are given: groups of fence, number of values a job has, number of jobs, and then for
-- each job its id and its values. It returns the ids whose lease still is the one the fence names, where in given the values of
-- each of them begin (false without values), and a letter for every job: o for ours, l for lost; no letters when all are ours.
local function rows(leases, given, first)
  local ids, fences, where, n = {}, {}, {}, 0
  local at = first
  while at <= #given do
    local fence, width, jobs = given[at], tonumber(given[at + 1]), tonumber(given[at + 2])
    at = at + 3
    for _ = 1, jobs do
      n = n + 1
      ids[n], fences[n], where[n] = given[at], fence, width > 0 and at + 1
      at = at + 1 + width
    end
  end
  local scores = redis.call('ZMSCORE', leases, unpack(ids))
  local letters, lost = {}, 0
  for i = 1, n do
    if owns(scores[i], fences[i]) then
      letters[i] = 'o'
      ids[i - lost], where[i - lost] = ids[i], where[i]
    else
      letters[i] = 'l'
      lost = lost + 1
    end
  end
  for i = n, n - lost + 1, -1 do
    ids[i], where[i] = nil, nil
  end
  return ids, where, lost > 0 and table.concat(letters) or ''
end

