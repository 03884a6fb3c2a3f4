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

-- rows reads what the scripts that settle jobs are given: for each job its id, its fence, the number of values that follow, and
-- those values. It returns the rows whose lease still is the one the fence names, as tables of id and values, and a letter for
-- every row: o for ours, l for lost.
local function rows(leases, given, first)
  local list, ids, letters, mine = {}, {}, {}, {}
  local at = first
  while at <= #given do
    local tail = tonumber(given[at + 2])
    local row = {id = given[at], fence = given[at + 1]}
    for i = 1, tail do
      row[i] = given[at + 2 + i]
    end
    list[#list + 1] = row
    ids[#ids + 1] = row.id
    at = at + 3 + tail
  end
  local scores = redis.call('ZMSCORE', leases, unpack(ids))
  for i, row in ipairs(list) do
    if owns(scores[i], row.fence) then
      mine[#mine + 1] = row
      letters[i] = 'o'
    else
      letters[i] = 'l'
    end
  end
  if #mine == #list then
    return mine, ''
  end
  return mine, table.concat(letters)
end

-- column collects the ids of rows.
local function column(list)
  local ids = {}
  for i, row in ipairs(list) do
    ids[i] = row.id
  end
  return ids
end

