-- bury_waiting: moves scheduled or ready jobs to dead, because an operator asks for it. They keep
-- their records and their error logs, which get the operator's reason.
--
-- KEYS[1]   pool      hash, job ID to record
-- KEYS[2]   bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[3]   ready     list of job IDs, next one at the head
-- KEYS[4]   leases    zset, job ID scored by the end of its lease
-- KEYS[5]   dead      zset, job ID scored by the time of burial
-- KEYS[6]   attempts  hash, job ID to number of finished attempts
-- KEYS[7]   errors    hash, job ID to its error log
-- KEYS[8]   moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[9]   stats     hash, counter to number
-- KEYS[10]  runs      hash, schedule to the history of its runs
-- KEYS[11]  receipt   string, the last call of the series and its reply
-- KEYS[12]  operator  none, never exists: a client without rights to it cannot make this call
-- KEYS[13]  lane      zset, place and ID of every ready job that has a key
-- KEYS[14]  keyed     hash, job ID to its place in a lane
-- KEYS[15]  meta      hash, settings of the topic made by operators
-- KEYS[16]  blockers  zset, place and ID of every job that its key waits for (see limits)
-- KEYS[17]  parked    zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[18]  turn      zset, key of waiting jobs scored by its pass
-- KEYS[19]  idle      zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[20]  notes     hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[21]  parcels   zset, what is on the way to other topics, by target and number
-- KEYS[22]  plans     hash, target to the plan by which its parcels are delivered
-- KEYS[23]  tombs     zset, closed job ID scored by when it is free again (Unix ms)
-- ARGV[1]   number    number of this call in its series
-- ARGV[2]   channel   the control channel
-- ARGV[3]   topic     the topic's name, for the control channel
-- ARGV[4..]  jobs     for each job: ID, reason (valid UTF-8), and how the caller knows it (see
--                     prelude/expect.lua). Each ID once, at most 500
--
-- Returns {'ok', now, letters}. letters has one letter for each of the first jobs, at least one. s
-- for scheduled and r for ready: buried, and this was its state. u for running, d for dead, c if it
-- is not as the caller knows it, g if there is no such job, a if there is none and the topic is a
-- closed place of one that has partitions: left alone. Nothing was done for the other jobs, because
-- the call has removed 100 entries of ready. If the limits of the topic say so, the keys of the
-- jobs wait until somebody has dealt with them.
-- Cost: O(jobs × log N).
-- Uses: now receipt stats append errors control ring history unready expect trace place rouse
-- Uses: free_keys reseat order block unblock end_run tell_slots elsewhere
local pool, bucket, ready, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local dead, attempts, errors, moved = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local stats, runs, receipt, operator = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local lane, keyed, meta = KEYS[13], KEYS[14], KEYS[15]
local blockers, parked, turn, idle = KEYS[16], KEYS[17], KEYS[18], KEYS[19]
local notes, parcels, plans, tombs = KEYS[20], KEYS[21], KEYS[22], KEYS[23]
local number, channel, topic = ARGV[1], ARGV[2], ARGV[3]
local jobs, first, width = ARGV, 4, 3

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local ids = {}
for at = first, #jobs, width do
  ids[#ids + 1] = jobs[at]
end
local leased = redis.call('ZMSCORE', leases, unpack(ids))
local delayed = redis.call('ZMSCORE', bucket, unpack(ids))
local buried = redis.call('ZMSCORE', dead, unpack(ids))
local others = redis.call('EXISTS', keyed, notes, notes) -- 1: keyed, 2: notes, 3: both
local lanes = others % 2 == 1
local places = lanes and redis.call('HMGET', keyed, unpack(ids)) or {}
local letters, graves, waiting, entries, laned, books = {}, {}, {}, {}, {}, {}
for i, id in ipairs(ids) do
  if #entries == unready_most then
    break
  end
  local letter = delayed[i] and 's' or 'r'
  if redis.call('HEXISTS', pool, id) == 0 then
    letter = absent(tombs)
  elseif leased[i] then
    letter = 'u'
  elseif buried[i] then
    letter = 'd'
  elseif not expected(jobs[first + (i - 1) * width + 2], letter, delayed[i], id, pool, attempts,
      moved) then
    letter = 'c'
  else
    graves[#graves + 1], graves[#graves + 2] = now, id
    books[#books + 1] = i
    if letter == 's' then
      waiting[#waiting + 1] = id
    elseif places[i] then
      laned[#laned + 1] = places[i] .. id
    else
      entries[#entries + 1] = id
    end
  end
  letters[i] = letter
end

local freed, over = 0, {}
if #books > 0 then
  redis.call('ZREM', dead, '') -- after a deletion, the script can write at maxmemory
  if lanes then
    local ordered, halts = order_of(redis.pcall('HGET', meta, 'flow'))
    local some, spots = {}, {}
    for n, i in ipairs(books) do
      some[n], spots[n] = ids[i], places[i]
    end
    if ordered and halts then
      block(blockers, some, spots)
    else
      freed = unblock(blockers, parked, turn, lane, ready, some, spots)
    end
  end
  redis.call('ZADD', dead, unpack(graves))
  if #waiting > 0 then
    redis.call('ZREM', bucket, unpack(waiting))
  end
  if #laned > 0 then
    redis.call('ZREM', lane, unpack(laned))
  end
  for _, id in ipairs(entries) do
    unready(ready, id)
  end
  for _, i in ipairs(books) do
    local id, reason = ids[i], jobs[first + (i - 1) * width + 1]
    local known = redis.pcall('HGET', moved, id)
    known = type(known) == 'string' and known
    local due = delayed[i] or string.match(known or '', '^%d+') or now
    local tally = string.match(known or '', '%d+ %d+ [01]$') or '0 0 0'
    redis.pcall('HSET', moved, id, due .. ' ' .. traced('bury', known) .. ' ' .. tally)
    local before = redis.pcall('HGET', attempts, id)
    local attempt = (type(before) == 'string' and tonumber(before) or 0) + 1
    local entry = {attempt = attempt, at = now, kind = 'buried', message = reason}
    failed(attempts, errors, id, '0', cjson.encode(entry))
    if scheduled(pool, runs, id) then
      over[#over + 1] = id
      local brief = string.sub(reason, 1, 256)
      if #reason > 256 then -- without a character that is cut
        brief = string.gsub(brief, '[\194-\244][\128-\191]*$', '')
      end
      end_run(runs, id, attempt, 'buried', brief)
    end
  end
  if others > 1 then
    -- Uses: look ended log_of
    local some = {}
    for n, i in ipairs(books) do
      some[n] = ids[i]
    end
    local tell = endings(notes, pool, stats, look, function()
      -- Uses: parcels post link
      return reporter(notes, parcels, plans)
    end)
    tell.jobs(some, log_of(errors), true)
    tell.close()
  end
end
tell_slots(channel, topic, over)
if freed > 0 then
  ring(idle, channel, topic, freed)
end
count(stats, 'buried', #books)
letters = table.concat(letters)
remember(receipt, number, letters)
return {'ok', now, letters}
