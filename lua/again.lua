-- again: ends jobs for good, and enqueues new jobs with the same IDs.
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
-- ARGV[1]    number    number of this call in its series
-- ARGV[2]    tick      ms, how far ahead timers look without a wake-up
-- ARGV[3]    channel   the control channel
-- ARGV[4]    topic     the topic's name, for the control channel
-- ARGV[5..]  jobs      rows (see prelude/settle.lua) of six values. Three are those of ack, about
--                      the job that ends: how long it is kept in ms (0: not; -1: not, and its run
--                      has failed), a netstring about the run and its output, and the run's entry
--                      for runs (empty: none). Three are those of enqueue, about the new job: head
--                      and tail of its record, and its due time
--
-- At most 1,000 jobs a call. Send no more than about 1 MiB of records, new ones and those to keep,
-- beyond those of the first job. A job that is lost or gone is not enqueued.
-- Returns {'ok', now, letters}: o for done, l for lost, g for gone; no letters if all are done.
-- Cost: O(jobs × log N).
-- Uses: now receipt stats sizes terms lease settle retain control wake ring history place rouse key
-- Uses: close_books
local leases, pool, attempts, errors, moved = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local done, results, stats, receipt, runs = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local bucket, ready, sizes, idle = KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local turn, lane, keyed = KEYS[15], KEYS[16], KEYS[17]
local number, tick, channel, topic = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local jobs, first = ARGV, 5

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local ids, where, letters = rows(leases, pool, jobs, first)
local failed = 0
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
  for i, id in ipairs(ids) do
    local at = where[i]
    if jobs[at] == '-1' then
      failed = failed + 1
    elseif jobs[at] ~= '0' then
      retain(pool, results, done, id, jobs[at], jobs[at + 1])
    end
    local record, due = jobs[at + 3] .. enqueued .. jobs[at + 4], terms(jobs[at + 5])
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
  redis.call('HSET', pool, unpack(records))
  release(leases, ids)
  if redis.call('EXISTS', attempts, errors, moved) > 0 then
    close_books(attempts, errors, moved, ids)
  end
  for i, id in ipairs(ids) do
    if jobs[where[i] + 2] ~= '' then
      ran(runs, id, 0, jobs[where[i] + 2])
    end
  end
  if pushed > 0 then
    ring(idle, channel, topic, pushed)
  end
end
count(stats, 'acked', #ids - failed)
count(stats, 'again', #ids - failed)
count(stats, 'enqueued', #ids - failed)
count(stats, 'retried', failed)
remember(receipt, number, letters)
return {'ok', now, letters}
