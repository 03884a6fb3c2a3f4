-- note: notes how far running jobs have come, and the results of the steps that they have made.
--
-- KEYS[1]    leases  zset, job ID scored by the end of its lease
-- KEYS[2]    notes   hash, who waits for jobs, and what their runs have noted (see wait, note)
-- ARGV[1..]  jobs    for each job: ID, fence, nonce of its record (8 bytes), how far it has come
--                    ("<done> <total> <run> <number> <text>"; empty: as before), and the name and
--                    the result of a step that is over (two empty ones: none). An ID can occur
--                    again. At most 500
--
-- What another incarnation of the job has noted is deleted. Those who wait for the job are told
-- when it has come further. Calls can overtake each other: of the reports of a run, those with a
-- number that is not larger than the last one are left out. A step with a known name gets the new
-- result. Send no more than about 1 MiB of results. Safe to send twice.
-- Returns {'ok', now, letters}: one letter for each of the first jobs, for at least one, and
-- otherwise for as many as have about 1 MiB of notes and results; each known step counts as 200
-- bytes. o for noted, l for left alone because the lease is lost, v for left alone because the job
-- has noted a hundred steps already, D for left alone because the names of its steps cannot be
-- read, z for left alone because Redis has no memory left.
-- Cost: O(jobs × log N).
-- Uses: now owns control look steps
local leases, notes = KEYS[1], KEYS[2]
local jobs, first, width = ARGV, 1, 6

-- waiting returns the names of those who wait for an incarnation of a job.
local function waiting(waiters, nonce)
  local at, list = 1, {}
  while true do
    local size, from = string.match(waiters, '^(%d+):()', at)
    if not size then
      return list
    end
    at = from + size
    if string.sub(waiters, from, from + 7) == nonce and size + 0 > 21 then
      list[#list + 1] = string.sub(waiters, from + 21, at - 1)
    end
  end
end

local ids, letters = {}, {}
for at = first, #jobs, width do
  ids[#ids + 1] = jobs[at]
end
local ends = redis.call('ZMSCORE', leases, unpack(ids))
local bytes = 0
for i, id in ipairs(ids) do
  if bytes > 1048576 then
    break
  end
  local at = first + (i - 1) * width
  local fence, nonce, progress = jobs[at + 1], jobs[at + 2], jobs[at + 3]
  local step, result = jobs[at + 4], jobs[at + 5]
  local own = owns(ends[i], fence)
  local letter = own and 'o' or 'l'
  local field, saved = 'p' .. id, 's' .. #id .. ':' .. id
  local known = own and redis.call('HMGET', notes, field, 'w' .. id) or {}
  local note, old, newer = known[1] or '', nil, false
  if note ~= '' and string.sub(note, 1, 8) ~= nonce then
    old, note = note, ''
  end
  if note == '' then
    note = nonce .. '0:'
  end
  local names, stop = steps_in(note)
  bytes = bytes + 2 * #note + #result
  local there = step == ''
  if not there then
    bytes = bytes + 200 * #names
    for _, one in ipairs(names) do
      there = there or one == step
    end
  end
  if own and not (stop and (there or #names < 100)) then
    letter = stop and 'v' or 'D'
  end
  if letter == 'o' then
    local list = string.sub(note, string.match(note, '^%d+:()', 9), stop - 1)
    local rest = string.sub(note, stop)
    local run, number = string.match(progress, '^%d+ %d+ (%d+) (%d+) ')
    local last_run, last = string.match(rest, '^ %d+ %d+ %d+ (%d+) (%d+) ')
    newer = run and (run ~= last_run or tonumber(number) > tonumber(last))
    if newer then
      rest = string.format(' %.0f ', now) .. progress
    end
    if not there then
      list = list .. #step .. ':' .. step
    end
    local put = {field, nonce .. #list .. ':' .. list .. rest}
    if step ~= '' then
      put[3], put[4] = saved .. nonce .. step, result
    end
    -- Nothing is written before it, because after a deletion it could not fail.
    local written = redis.pcall('HSET', notes, unpack(put))
    if type(written) == 'table' then
      if not string.find(written.err, 'OOM', 1, true) then
        return written
      end
      letter = 'z'
    end
  end
  if letter == 'o' and old then
    local others = steps_in(old)
    local fields = {saved .. string.sub(old, 1, 8)} -- of no step
    for _, one in ipairs(others) do
      fields[#fields + 1] = fields[1] .. one
    end
    redis.call('HDEL', notes, unpack(fields))
    bytes = bytes + #old + 200 * #others
  end
  if letter == 'o' and newer and known[2] then
    look(notes, waiting(known[2], nonce), id)
  end
  letters[i] = letter
end
return {'ok', now, table.concat(letters)}
