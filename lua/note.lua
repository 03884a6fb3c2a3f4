-- note: notes how far running jobs have come, and the results of the steps that they have made.
--
-- KEYS[1]    leases  zset, job ID scored by the end of its lease
-- KEYS[2]    notes   hash, who waits for jobs, and what their runs have noted (see wait, note)
-- ARGV[1..]  jobs    for each job: ID, fence, nonce of its record (8 bytes), how far it has come
--                    ("<done> <total> <text>"; empty: as before), and the name and the result of a
--                    step that is over (two empty ones: none). An ID can occur again. At most 500
--
-- What another incarnation of the job has noted is deleted. Those who wait for the job are told
-- when it has come further. A step with a known name gets the new result. Send no more than about
-- 1 MiB of results. Safe to send twice.
-- Returns {'ok', now, letters}: one letter a job, o for noted, l for left alone because the lease
-- is lost, v for left alone because the job has noted a hundred steps already.
-- Cost: O(jobs × log N).
-- Uses: now owns control look
local leases, notes = KEYS[1], KEYS[2]
local jobs, first, width = ARGV, 1, 6

local letters = {}

-- parts_of reads the steps of a note, and returns the set of their names, their number, and the
-- note without what follows the text.
local function parts_of(note)
  local names, n, front = {}, -1, note
  local at = string.match(note, '^%d+ %d+ %d+ ()', 10)
  while at do
    local size, from = string.match(note, '^(%d+):()', at)
    if not size then
      break
    end
    at, n = from + size, n + 1
    if n > 0 then
      names[string.sub(note, from, at - 1)] = true
    else
      front = string.sub(note, 1, at - 1)
    end
  end
  return names, math.max(n, 0), string.sub(note, #front + 1)
end

-- waiting returns the names of those who wait for a job.
local function waiting(id, nonce)
  local waiters, at, list = redis.call('HGET', notes, 'w' .. id) or '', 1, {}
  while true do
    local size, from = string.match(waiters, '^(%d+):()', at)
    if not size then
      return list
    end
    at = from + size
    if string.sub(waiters, from, from + 7) == nonce then
      list[#list + 1] = string.sub(waiters, from + 21, at - 1)
    end
  end
end

for at = first, #jobs, width do
  local id, fence, nonce = jobs[at], jobs[at + 1], jobs[at + 2]
  local progress, step, result = jobs[at + 3], jobs[at + 4], jobs[at + 5]
  local letter = owns(redis.call('ZSCORE', leases, id), fence) and 'o' or 'l'
  local field, front = 'p' .. id, 's' .. #id .. ':' .. id
  local note = letter == 'o' and redis.call('HGET', notes, field) or ''
  local names, steps, listed = parts_of(note)
  if note ~= '' and string.sub(note, 1, 8) ~= nonce then
    local fields = {}
    for one in pairs(names) do
      fields[#fields + 1] = front .. string.sub(note, 1, 8) .. one
    end
    redis.call('HDEL', notes, field, unpack(fields))
    note, names, steps, listed = '', {}, 0, ''
  end
  local known = names[step]
  if letter == 'o' and step ~= '' and not known and steps >= 100 then
    letter = 'v'
  end
  if letter == 'o' then
    redis.call('HDEL', notes, '') -- after a deletion, the script can write at maxmemory
    local head = note ~= '' and string.sub(note, 1, #note - #listed) or nonce .. ' 0 0 0 0:'
    if progress ~= '' then
      local count, total, text = string.match(progress, '^(%d+) (%d+) (.*)$')
      head = nonce .. string.format(' %.0f ', now) .. count .. ' ' .. total .. ' '
        .. #text .. ':' .. text
    end
    if step ~= '' then
      listed = known and listed or listed .. #step .. ':' .. step
      redis.call('HSET', notes, front .. nonce .. step, result)
    end
    redis.call('HSET', notes, field, head .. listed)
    if progress ~= '' then
      look(notes, waiting(id, nonce), id)
    end
  end
  letters[#letters + 1] = letter
end
return {'ok', now, table.concat(letters)}
