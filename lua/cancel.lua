-- cancel: removes jobs in any state, and their successors. If one is running, its server loses the
-- lease and receives a message.
--
-- KEYS[1]   pool      hash, job ID to record
-- KEYS[2]   bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[3]   leases    zset, job ID scored by the end of its lease
-- KEYS[4]   dead      zset, job ID scored by the time of burial
-- KEYS[5]   attempts  hash, job ID to number of finished attempts
-- KEYS[6]   errors    hash, job ID to its error log
-- KEYS[7]   moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[8]   stats     hash, counter to number
-- KEYS[9]   receipt   string, the last call of the series and its reply
-- KEYS[10]  runs      hash, schedule to the history of its runs
-- KEYS[11]  ready     list of job IDs, next one at the head
-- KEYS[12]  lane      zset, place and ID of every ready job that has a key
-- KEYS[13]  keyed     hash, job ID to its place in a lane
-- KEYS[14]  blockers  zset, place and ID of every job that its key waits for (see limits)
-- KEYS[15]  parked    zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[16]  turn      zset, key of waiting jobs scored by its pass
-- KEYS[17]  idle      zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[18]  holders   zset, key and ID of every running job whose key has a limit of running jobs
-- KEYS[19]  sizes     hash, the size of the largest record
-- KEYS[20]  tombs     zset, closed job ID scored by when it is free again (Unix ms)
-- KEYS[21]  next      hash, running job ID to the successor that it will have
-- KEYS[22]  notes     hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[23]  parcels   zset, what is on the way to other topics, by target and number
-- KEYS[24]  plans     hash, target to the plan by which its parcels are delivered
-- KEYS[25]  staying   zset, key of a closed place scored by the pass that has found it last
-- ARGV[1]   number    number of this call in its series
-- ARGV[2]   channel   the control channel
-- ARGV[3]   topic     the topic's name, for the control channel
-- ARGV[4..]  jobs     for each job: ID, and how the caller knows it (see prelude/expect.lua). After
--                     an exclamation mark can follow for how many ms the ID is closed (0: it is
--                     free), a slash, and how many tombs the topic may have (0, after 0 ms: the ID
--                     is free only if a job had it). Each ID once, at most 500
--
-- Returns {'ok', now, letters, full}. letters has one letter for each of the first jobs, at least
-- one: the state it was in (s for scheduled, r for ready, u for running, d for dead). c if it is
-- not as the caller knows it, g if there is no such job, a if there is none and the topic is a
-- closed place of one that has partitions: left alone. Nothing was done for the other jobs, because
-- the call has removed 100 entries of ready. full is empty unless the topic has too many tombs:
-- then it has a v for each ID that is not closed, and otherwise a -. An ID is closed too if there
-- is no such job. With the letter a it can become free, but it is closed only if the place goes on
-- taking jobs of some keys (see prelude/staying.lua), because the caller does not know the key, and
-- if the caller does not say how he knows the job, because then it is another one.
-- Cost: O(jobs × log N).
-- Uses: now receipt stats lease control ring history unready expect place rouse free_keys unblock
-- Uses: end_run close_books holder straggler look muted ended withdraw tell_slots elsewhere
local pool, bucket, leases, dead, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local errors, moved, stats = KEYS[6], KEYS[7], KEYS[8]
local receipt, runs, ready, lane, keyed = KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local blockers, parked, turn, idle = KEYS[14], KEYS[15], KEYS[16], KEYS[17]
local holders, sizes, tombs, next, notes = KEYS[18], KEYS[19], KEYS[20], KEYS[21], KEYS[22]
local parcels, plans, staying = KEYS[23], KEYS[24], KEYS[25]
local number, channel, topic = ARGV[1], ARGV[2], ARGV[3]
local jobs, first, width = ARGV, 4, 2

-- reports is for endings.
local function reports()
  -- Uses: parcels post link
  return reporter(notes, parcels, plans, muted)
end

local told = replay(receipt, number)
if told then
  local letters, full = string.match(told, '^(%a*) ?([v-]*)$')
  return {'ok', now, letters or told, full or ''}
end

local ids, wants, noted, graves = {}, {}, {}, nil
for at = first, #jobs, width do
  local n, known = #ids + 1, jobs[at + 1]
  if known ~= '' and string.find(known, '!', 1, true) then
    local wanted, ms, most = string.match(known, '^(.*)!(%d+)/(%d+)$')
    graves, known = graves or {}, wanted
    graves[n] = {tonumber(ms), tonumber(most), wanted == ''}
  end
  ids[n], wants[n] = jobs[at], known
  noted[n] = scheduled(pool, runs, jobs[at])
end
if graves then
  redis.call('ZCARD', tombs) -- a wrong type must cause an error before the jobs are deleted
end
local letters, freed = withdraw(ids, wants, noted, pool, bucket, ready, lane, keyed, leases, dead,
  attempts, errors, moved, runs, blockers, parked, turn, holders, sizes, next, channel, topic,
  notes, stats, reports)
if string.find(letters, 'g', 1, true) then
  local done = string.find(letters, '[srud]') ~= nil
  letters = string.gsub(letters, 'g', absent(tombs, done))
end
if freed > 0 then
  ring(idle, channel, topic, freed)
end
local over = {}
for i, id in ipairs(ids) do
  if noted[i] and string.find(string.sub(letters, i, i), '[sru]') then
    over[#over + 1] = id
  end
end
tell_slots(channel, topic, over)
local full = ''
if graves then
  -- Uses: tombs dig
  full = dig(tombs, ids, graves, letters, staying)
end
local _, others = string.gsub(letters, '[acg]', '')
count(stats, 'cancelled', #letters - others)
remember(receipt, number, full == '' and letters or letters .. ' ' .. full)
return {'ok', now, letters, full}
