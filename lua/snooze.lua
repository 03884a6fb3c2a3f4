-- snooze: puts jobs back into bucket because their handlers asked for it. No attempt is used up.
--
-- KEYS[1]    leases    zset, job ID scored by the end of its lease
-- KEYS[2]    bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[3]    moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[4]    stats     hash, counter to number
-- KEYS[5]    receipt   string, the last call of the series and its reply
-- KEYS[6]    pool      hash, job ID to record
-- KEYS[7]    keyed     hash, job ID to its place in a lane
-- KEYS[8]    sizes     hash, the size of the largest record, and the number of the last place
-- KEYS[9]    meta      hash, settings of the topic made by operators
-- KEYS[10]   blockers  zset, place and ID of every job that its key waits for (see limits)
-- KEYS[11]   next      hash, running job ID to the successor that it will have
-- KEYS[12]   notes     hash, who waits for jobs, and what their runs have noted (see wait, note)
-- ARGV[1]    number    number of this call in its series
-- ARGV[2..]  jobs      rows (see prelude/settle.lua) of three values: delay in ms, the tally for
--                      its entry in moved ("<spent> <snoozes> <revived>"), and 1 if the server
--                      cannot run the job because a later release has stored it, else 0
--
-- A job that has a successor takes its record, as by retry. A job of a later release is not changed
-- in any other way: if the jobs of a key run in their order, it stays the first one, and only the
-- time of its entry in moved is another one. At most 1,000 jobs a call.
-- Returns {'ok', now, letters}: o for put back, l for lost, g for gone; no letters if all are put
-- back. q for left for another call, because the successors have more than 1 MiB.
-- Cost: O(jobs × log N).
-- Uses: now receipt stats lease owns settle place reseat order block keep_first put_back
local leases, bucket, moved = KEYS[1], KEYS[2], KEYS[3]
local stats, receipt, pool, keyed, sizes = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local meta, blockers, next, notes = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local number, jobs, first = ARGV[1], ARGV, 2

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local ids, where, letters = rows(leases, pool, jobs, first)
local heirs, take_on, taken_on, tell
local also = #ids > 0 and redis.call('EXISTS', next, notes, notes) or 0 -- 1: next, 2: notes
if also % 2 == 1 then
  -- Uses: successor heirs spare inherit inherited ended
  take_on, taken_on = inherit, inherited
  tell = also > 1 and endings(notes, pool, stats)
  local skip, any
  heirs, skip, any = heirs_of(next, ids)
  if any then
    ids, where, letters, heirs = spare(ids, where, letters, skip, heirs)
  end
  for i in ipairs(ids) do
    if jobs[where[i] + 2] == '1' then
      heirs[i] = nil
    end
  end
end
if #ids > 0 then
  redis.call('ZREM', bucket, '') -- after a deletion, the script can write at maxmemory
  local dues = delays(jobs, ids, where)
  if heirs then
    take_on(heirs, ids, dues, keyed, sizes)
  end
  local others, times, later, places = {}, {}, {}, {} -- later: those of a later release
  for i, id in ipairs(ids) do
    if jobs[where[i] + 2] == '1' then
      later[#later + 1], places[#later + 1] = id, i
    else
      others[#others + 1], times[#others + 1] = id, dues[i]
    end
  end
  local entries = #later > 0 and redis.pcall('HMGET', moved, unpack(later)) or {}
  if #later > 0 and keep_first(keyed, sizes, meta, blockers, later) then
    reseat(keyed, sizes, others, times)
  else
    reseat(keyed, sizes, ids, dues)
  end
  put_back(leases, bucket, moved, jobs, ids, where, dues, 'snooze')
  if heirs then
    taken_on(heirs, ids, dues, pool, moved, next, jobs, where, tell)
  end
  for n, id in ipairs(later) do
    local rest = string.match(entries[n] or '', '^%d+( .*)$')
    if rest then
      redis.pcall('HSET', moved, id, dues[places[n]] .. rest)
    end
  end
end
count(stats, 'snoozed', #ids)
remember(receipt, number, letters)
return {'ok', now, letters}
