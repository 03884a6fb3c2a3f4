-- again: ends jobs for good, and enqueues new jobs with the same IDs: their successors, or those
-- that their handlers ask for.
--
-- KEYS[1]    leases    zset, job ID scored by the end of its lease
-- KEYS[2]    pool      hash, job ID to record
-- KEYS[3]    attempts  hash, job ID to number of finished attempts
-- KEYS[4]    errors    hash, job ID to its error log
-- KEYS[5]    moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[6]    done      zset, job ID scored by the time it is kept until
-- KEYS[7]    results   hash, job ID to its kept run and record
-- KEYS[8]    stats     hash, counter to number
-- KEYS[9]    receipt   string, the last call of the series and its reply
-- KEYS[10]   runs      hash, schedule to the history of its runs
-- KEYS[11]   bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[12]   ready     list of job IDs, next one at the head
-- KEYS[13]   sizes     hash, the size of the largest record
-- KEYS[14]   idle      zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[15]   turn      zset, key of waiting jobs scored by its pass
-- KEYS[16]   lane      zset, place and ID of every ready job that has a key
-- KEYS[17]   keyed     hash, job ID to its place in a lane
-- KEYS[18]   next      hash, running job ID to the successor that it will have
-- KEYS[19]   notes     hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[20]   parcels   zset, what is on the way to other topics, by target and number
-- KEYS[21]   plans     hash, target to the plan by which its parcels are delivered
-- ARGV[1]    number    number of this call in its series
-- ARGV[2]    tick      ms, how far ahead timers look without a wake-up
-- ARGV[3]    channel   the control channel
-- ARGV[4]    topic     the topic's name, for the control channel
-- ARGV[5..]  jobs      rows (see prelude/settle.lua) of six values. Three are those of ack, about
--                      the job that ends: how long it is kept in ms (0: not; -1: not, and its run
--                      has failed), a netstring about the run and its output, and the run's entry
--                      for runs (empty: none). Three are those of enqueue, about the new job: head
--                      and tail of its record, and its due time. Or they are two empty ones and
--                      acked, expired or buried: the job ends so, and the new job is its successor.
--                      If it has none, the job is left alone. With buried, the second value is the
--                      entry for the error log, which those who wait for the job are told
--
-- A successor takes the place of the job that a handler asks for. At most 1,000 jobs a call. Send
-- no more than about 1 MiB of records, new ones and those to keep, beyond those of the first job. A
-- job that is lost or gone is not enqueued.
-- Returns {'ok', now, letters}: o for done, l for lost, g for gone; no letters if all are done. N
-- for done, and the successor was enqueued instead of the job that the handler asks for. q for left
-- for another call, because the job has no successor, or the successors have more than 1 MiB.
-- Cost: O(jobs × log N).
-- Uses: now receipt stats sizes terms lease owns settle retain control wake ring history place
-- Uses: rouse key close_books successor heirs spare handed
local leases, pool, attempts, errors, moved = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local done, results, stats, receipt, runs = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local bucket, ready, sizes, idle = KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local turn, lane, keyed, next, notes = KEYS[15], KEYS[16], KEYS[17], KEYS[18], KEYS[19]
local parcels, plans = KEYS[20], KEYS[21]
local number, tick, channel, topic = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local jobs, first = ARGV, 5

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local ids, where, letters = rows(leases, pool, jobs, first)
local heirs, skip, any = {}, {}, false
local others = #ids > 0 and redis.call('EXISTS', next, notes, notes) or 0 -- 1: next, 2: notes
if others % 2 == 1 then
  heirs, skip, any = heirs_of(next, ids)
end
for i, id in ipairs(ids) do
  if not heirs[i] and jobs[where[i] + 3] == '' then
    if not skip[i] then -- what cannot be read must not make ack and again answer q for ever
      redis.call('HDEL', next, id)
    end
    skip[i], any = true, true
  end
end
if any then
  ids, where, letters, heirs = spare(ids, where, letters, skip, heirs)
end

local ends, renewed = {acked = 0, expired = 0, buried = 0, retried = 0}, 0
if #ids > 0 then
  -- A wrong type must cause an error before the first write.
  redis.call('HLEN', pool)
  redis.call('LLEN', ready)
  redis.call('ZCARD', turn)
  redis.call('ZCARD', lane)
  redis.call('ZREM', bucket, unpack(ids)) -- after a deletion, the script can write at maxmemory
  local records, later, soon = {}, {}, {}
  local earliest, largest = nil, 0
  local enqueued = '\173' .. string.format('%013.0f', now)
  local moves, followed = {}, {}
  for i, id in ipairs(ids) do
    local at, heir = where[i], heirs[i]
    local failed = jobs[at] == '-1'
    if not failed and jobs[at] ~= '0' then
      retain(pool, results, done, id, jobs[at], jobs[at + 1])
    end
    local record, due
    if heir then
      record, due = heir.record, math.max(heir.due, now)
      followed[#followed + 1] = id
      moves[#moves + 1], moves[#moves + 2] = id, string.format('%.0f ', due) .. heir.why .. ' 0 0 0'
    else
      record, due = jobs[at + 3] .. enqueued .. jobs[at + 4], terms(jobs[at + 5])
      renewed = renewed + (failed and 0 or 1)
    end
    local ending = jobs[at + 3] == '' and jobs[at + 5] or 'acked'
    if failed then -- the job goes on, or its successor takes its place
      ending = heir and 'buried' or 'retried'
    end
    ends[ending] = ends[ending] + 1
    local has_lane = to_lane(id, record, due)
    if due > now then
      later[#later + 1] = string.format('%.0f', due)
      later[#later + 1] = id
      earliest = math.min(earliest or due, due)
    elseif not has_lane then
      soon[#soon + 1] = id
    end
    records[2 * i - 1], records[2 * i] = id, record
    largest = math.max(largest, #record)
  end
  -- The lease is released last. So whatever fails, the old job or the new one exists.
  if earliest then
    wake(bucket, earliest, tick, channel, topic)
  end
  -- Uses: place_jobs
  if redis.call('EXISTS', keyed) == 1 then
    redis.call('HDEL', keyed, unpack(ids))
  end
  local pushed = #soon + enlane(turn, lane, keyed, sizes, ready)
  if handed.over then -- before anybody is told that the jobs have ended
    handed.over(jobs, where, ids)
  end
  if others > 1 then
    -- Uses: look ended outcome append
    local tell = endings(notes, pool, stats, look, function()
      -- Uses: parcels post link
      return reporter(notes, parcels, plans)
    end)
    tell.jobs(ids, function(i, id)
      local at = where[i]
      if jobs[at + 3] ~= '' and not heirs[i] then
        return 'f', string.sub(jobs[at + 3], 1, 8) -- the job that its handler asks for
      elseif jobs[at] ~= '-1' and jobs[at + 5] ~= 'buried' then
        return outcome_of(jobs[at + 3] == '' and jobs[at + 5] or 'acked', id, attempts,
          jobs[at + 1])
      end
      local log = redis.pcall('HGET', errors, id)
      log = type(log) == 'string' and log or ''
      return 'd', jobs[at + 1] == '' and log or append(log, jobs[at + 1])
    end)
    tell.close()
  end
  redis.call('HSET', pool, unpack(records))
  release(leases, ids)
  if redis.call('EXISTS', attempts, errors, moved) > 0 then
    close_books(attempts, errors, moved, ids)
  end
  if #moves > 0 then
    redis.call('HDEL', next, unpack(followed))
    redis.pcall('HSET', moved, unpack(moves))
  end
  for i, id in ipairs(ids) do
    if jobs[where[i] + 2] ~= '' then
      local failed = string.find(jobs[where[i] + 5], '^[eb]') and 1 or 0
      ran(runs, id, failed, jobs[where[i] + 2])
    end
  end
  if pushed > 0 then
    ring(idle, channel, topic, pushed)
  end
  if #followed > 0 then -- say which jobs were not enqueued as their handlers asked
    local n = 0
    letters = letters == '' and string.rep('o', #ids) or letters
    letters = string.gsub(letters, 'o', function()
      n = n + 1
      local letter = heirs[n] and jobs[where[n] + 3] ~= '' and 'N' or 'o'
      return letter
    end)
  end
end
for ending, jobs_of in pairs(ends) do
  count(stats, ending, jobs_of)
end
count(stats, 'again', renewed)
count(stats, 'enqueued', #ids - ends.retried)
remember(receipt, number, letters)
return {'ok', now, letters}
