-- take: leases jobs from the head of ready to one server.
--
-- KEYS[1]   ready     list of job IDs, next one at the head
-- KEYS[2]   handoff   list of job IDs on the way from a server's wait to its take
-- KEYS[3]   pool      hash, job ID to record
-- KEYS[4]   bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[5]   leases    zset, job ID scored by the end of its lease
-- KEYS[6]   dead      zset, job ID scored by the time of burial
-- KEYS[7]   attempts  hash, job ID to number of finished attempts
-- KEYS[8]   moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[9]   meta      hash, settings of the topic made by operators
-- KEYS[10]  receipt   list of this taker: number and lease end of its last take, 1 if there was
--                     more to take, p if the jobs start by patience, and the starts of its
--                     reply, then the IDs it got
-- KEYS[11]  stats     hash, counter to number
-- KEYS[12]  sizes     hash, the size of the largest record
-- KEYS[13]  idle      zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[14]  turn      zset, key of waiting jobs scored by its pass
-- KEYS[15]  lane      zset, place and ID of every ready job that has a key
-- KEYS[16]  keyed     hash, job ID to its place in a lane
-- KEYS[17]  rules     hash, key to what is set for it
-- KEYS[18]  held      zset, key scored by the end of its hold (Unix ms)
-- KEYS[19]  parked    zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[20]  holders   zset, key and ID of every running job whose key has a limit of running jobs
-- KEYS[21]  rates     zset, key scored by its tat (Unix µs)
-- KEYS[22]  blockers  zset, place and ID of every job that its key waits for (see limits)
-- KEYS[23]  lags      zset, key that a limit has stopped scored by the pass that it had
-- ARGV[1]   number    number of this take, higher than that of the one before
-- ARGV[2]   since     number of the first take without a reply; equal to number: none
-- ARGV[3]   limit     most jobs to take, at most 1,000 (unpack has a stack limit). 0: give back the
--                     jobs of those takes
-- ARGV[4]   bytes     most bytes of records to return; always at least one job
-- ARGV[5]   lease     length of the lease in ms
-- ARGV[6]   free      how many jobs can start immediately. Beyond that, no job with limited retries
--                     is taken (flag 1 of its record), because a crash counts as an attempt of
--                     every taken job
-- ARGV[7]   place     where the jobs go that are given back: head or tail of ready
-- ARGV[8]   name      under which the server waits if this take leaves ready empty and a slot
--                     free; empty: it does not wait
-- ARGV[9]   listed    1: the name may be in idle. A take that does not add it removes it
-- ARGV[10]  enough    jobs are gathered until there are so many; 0: they are not gathered
-- ARGV[11]  within    ms, how long they are gathered at most
-- ARGV[12]  groups    most keys to take jobs of, each at most a batch; 0: jobs of all keys are
--                     gathered together
-- ARGV[13]  batch     most jobs of a batch
-- ARGV[14]  spaced    1: the server starts each job at the time that the reply says
-- ARGV[15]  patience  ms, how long a job that cannot start immediately waits in its server at most,
--                     if the topic has a rate; 0: if it has limits, no such job is taken
--
-- The parts of the prelude say more: take_repeat what a take gets of those before it, take_bounds
-- and take_gather how many jobs it may lease, take_heads which keys are served, take_rations what
-- their limits let it lease, and take_list which IDs in handoff and ready count. At most 1,000 IDs
-- are looked at. A request that arrives after a later one does nothing.
--
-- A server waits if its name is in idle. A script that puts jobs into ready takes the name off and
-- publishes the topic on <channel>:<name>. A take adds the name if it leaves both lists empty and
-- has leased fewer jobs than can start immediately.
--
-- Returns {'ok', now, lease end (a score), ids, records, attempts, moved, more, waits, bound, left,
-- limited, starts}. attempts and moved are false if no job of the topic has any. more is 1 if bytes
-- ended the take, if it has looked at 1,000 IDs, or if jobs were given back: there is more to take.
-- waits is 1 if the server waits now; after 0 it must ask again when it can start a job. bound is
-- missing in a repeated reply, and if the topic has no limits. Otherwise it says what ended the
-- take: free, limit (of running jobs), rate, on (nothing of these), or far (nothing, and the limits
-- are far away). left is after how many µs this server is to take again, with rate. With far, it
-- is how many µs after the request a job may start at the latest, if the topic has a rate. A
-- repeated reply has it, too, and then it counts from the first of those requests. limited
-- is 1 if limits of keys are in force, and 2 if the take has parked keys because of them: then the
-- timer has to promote, so that it knows when they get turns. It is 3 if keys are parked for other
-- reasons only. starts is missing if all jobs may start at once. Otherwise it has for each of them
-- after how many µs its rates let it start. They count that start.
--
-- Other replies are {'empty', now, waits, limited}, {'busy', now, waits, limited} (jobs wait for an
-- idle worker), {'paused', now, until when or 0} and {'held', now, until when} (idle is unchanged),
-- {'limit', now}, {'rate', now, left}, {'gather', now, ms that it still takes, waits}, and with
-- limit 0 {'returned', now, ids}. 'ok' without IDs and with waits 0 means: ask again.
-- Cost: O(limit × log N), and no more than bytes, or one record, are read.
-- Uses: now stats lease paused place rouse line_up key_rule holder order
local ready, handoff, pool, bucket = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local leases, dead, attempts, moved = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local meta, receipt, stats, sizes, idle = KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local turn, lane, keyed, rules, held = KEYS[14], KEYS[15], KEYS[16], KEYS[17], KEYS[18]
local parked, holders, rates, blockers = KEYS[19], KEYS[20], KEYS[21], KEYS[22]
local lags = KEYS[23]
local number, since, limit, bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local lease, free, place = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local name, listed = ARGV[8], ARGV[9]
local enough, within = tonumber(ARGV[10]), tonumber(ARGV[11])
local groups, batch, spaced = tonumber(ARGV[12]), tonumber(ARGV[13]), tonumber(ARGV[14])
local patience = tonumber(ARGV[15])

-- The end contains the microseconds of the present. So no two leases of a job end at the same time,
-- and a fence identifies one of them.
local lease_end = string.format('%.0f.%03d', now + lease, time[2] % 1000)
-- Uses: take_reply take_rate take_read

local last = tonumber(redis.call('LINDEX', receipt, 0) or nil)
if last and last > tonumber(number) then
  return {'empty', now, 0} -- abandoned by the server, and late: see prelude/receipt.lua
end
if last and last >= since then
  -- Uses: free_keys take_repeat
  local reply = repeated(last == tonumber(number))
  if reply then
    return reply
  end
end
if since < tonumber(number) then
  note('0', false, {}) -- none of those takes gets anything if it comes after this one
end
if limit == 0 then
  return {'returned', now, {}}
end

local set = redis.call('HMGET', meta, 'paused', 'until', 'hold', 'flow', 'tat', 'promise',
  'limited', 'gather', 'ahead')
local flow = set[4]
if set[3] and set[3] == set[9] then -- that of a take: see take_rate
  promised, set[3] = number_of(set[3]), false
  if promised > now + 16 then -- the clock was set back
    redis.pcall('HDEL', meta, 'hold', 'holdby', 'holdwhy', 'ahead')
    promised = 0
  end
end
if paused(set) then
  return {'paused', now, number_of(set[2])}
elseif now < number_of(set[3]) then
  return {'held', now, tonumber(set[3])}
end

-- The limits of each key, unless it has its own.
local key_running, key_emit, key_burst = flow_of(flow)
local by_key = key_running > 0 or key_emit > 0 or number_of(set[7]) > 0
local limited = by_key and 1 or nil -- in the reply
if flow or by_key then
  -- Uses: take_bounds
  limit = bounds(flow, set[5], by_key)
  if limit <= 0 and redis.call('EXISTS', ready, handoff, turn) > 0 then
    return refusal(set[6], limited)
  end
  if emit > 0 then -- else the topic would count starts that a key lets start later
    spaced = 0
  end
end

local kept_back = false -- jobs stay because they are gathered for another batch
if enough > 0 and groups == 0 then
  -- Uses: take_gather
  local most, reply = gather(number_of(set[8]))
  if reply then
    return reply
  elseif most < limit then
    limit, kept_back, bound = most, true, bound and 'on'
  end
end

-- What serves keys is defined only where keys take turns: every call defines its functions anew.
local serve_keys, put_stray, rounded
local refilled = false -- whether put_stray has put a job into ready
-- Uses: take_list

local most_jobs, laned, pass = limit, nil, nil -- laned: the jobs of keys that have been taken
if limit > 0 and redis.call('EXISTS', turn, held, parked) > 0
  and type(redis.pcall('ZCARD', turn)) == 'number' then -- a wrong type stops keys alone
  -- The more keys there are, the more work is each job: these many are about as much.
  local fewest = groups > 0 and math.min(batch, 250) or by_key and 50 or 110
  limit = math.min(limit, math.max(fewest, math.floor(250 - 1.3 * redis.call('ZCARD', turn))))
  groups = groups > 0 and math.max(1, math.min(groups, math.floor(limit / batch))) or 0
  if redis.call('EXISTS', ready, handoff) > 0 then
    redis.call('ZREM', lane, '') -- after a deletion, the script can write at maxmemory
    offer(turn, {''})
  end
  -- Uses: sweep take_stray take_rations take_lags take_heads take_turns
  serve_keys, put_stray, rounded = serve, stray, whole_pass
  local plain
  plain, pass = serve()
  laned, most_jobs = got, groups > 0 and got + plain or limit
  dry = got == limit or plain == 0 and redis.call('EXISTS', ready, handoff) == 0
end
take_list(most_jobs, laned)

-- The empty key has had its turn. Without other keys there are no turns.
if laned then
  local others = redis.call('ZCARD', turn)
  pass = pass or tonumber(redis.call('ZSCORE', turn, '') or nil)
  if pass then
    others = others - 1
    if dry and got < limit or others == 0 then
      redis.call('ZREM', turn, '')
    elseif got > laned then
      redis.call('ZADD', turn, string.format('%.17g', rounded(pass + got - laned)), '')
    end
  end
  -- The others get what it has left.
  if others > 0 and got < limit and not busy and not more and groups == 0 then
    serve_keys()
    others = redis.call('ZCARD', turn)
  end
  -- A server that is about to block must not do so while keys have jobs, so this wakes it.
  if others > 0 and redis.call('EXISTS', ready) == 0 then
    redis.pcall('RPUSH', ready, '')
  end
  if others == 0 and by_key then -- the next pass is 0
    redis.call('DEL', lags)
  end
  more = more or others > 0 and not busy
  dry = dry and others == 0 and got < limit and not refilled
end
-- A take that has looked at as many as it may does not know what comes behind them.
more = more or kept_back and got > 0 or looked >= 1000 and got < limit and not dry and not busy

-- The server is registered by the very take that finds nothing more. So a job cannot be pushed
-- between the two.
local waits = 0
if name ~= '' and dry and got < free then
  local put = redis.pcall('ZADD', idle, now, name) -- a wait begins anew: see census
  if type(put) == 'table' and got == 0 and not string.find(put.err, 'WRONGTYPE', 1, true) then
    -- It fails where Redis takes no writes, as on a master that has become a replica. There a take
    -- must not go on reporting that nothing is ready. At maxmemory it does not fail, and after a
    -- deletion the script can write.
    redis.call('ZREM', idle, '')
    put = redis.pcall('ZADD', idle, now, name)
  end
  waits = type(put) == 'table' and 0 or 1
elseif listed == '1' then
  redis.pcall('ZREM', idle, name)
end
if looked == 0 then
  return {busy and 'busy' or 'empty', now, waits, limited}
end
local starts = starts_of(got)
local patient = bound == 'far' and emit > 0 and limit > free
if got > 0 then
  lease_end = redis.call('ZSCORE', leases, ids[1]) -- as Redis writes it from now on
  note(lease_end, more, ids, starts, patient)
  count(stats, 'taken', got)
end
if bound and bound ~= 'far' and got < limit then
  bound = 'on'
end
at = at and at + got * emit
if got == limit and not kept_back and bound ~= 'limit' and few() then -- no need to ask at once
  bound = 'rate'
end
local wait = bound == 'rate' and come(set[6], false)
  or patient and 1000 * patience or by_key and 0 or nil
return answer(lease_end, ids, records, more, waits, bound, wait, limited, starts)
