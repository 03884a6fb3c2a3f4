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

-- waiting returns the names of those who wait for an incarnation of a job.
local function waiting(waiters, nonce)
  local at, list = 1, {}
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

local ids, letters = {}, {}
for at = first, #jobs, width do
  ids[#ids + 1] = jobs[at]
end
local ends = redis.call('ZMSCORE', leases, unpack(ids))
redis.call('HDEL', notes, '') -- after a deletion, the script can write at maxmemory
for i, id in ipairs(ids) do
  local at = first + (i - 1) * width
  local fence, nonce, progress = jobs[at + 1], jobs[at + 2], jobs[at + 3]
  local step, result = jobs[at + 4], jobs[at + 5]
  local own = owns(ends[i], fence)
  local letter = own and 'o' or 'l'
  local field, front = 'p' .. id, 's' .. #id .. ':' .. id
  local known = own and redis.call('HMGET', notes, field, 'w' .. id) or {}
  local note = known[1] or ''
  local names, steps, listed = parts_of(note)
  if note ~= '' and string.sub(note, 1, 8) ~= nonce then
    local fields = {}
    for one in pairs(names) do
      fields[#fields + 1] = front .. string.sub(note, 1, 8) .. one
    end
    redis.call('HDEL', notes, field, unpack(fields))
    note, names, steps, listed = '', {}, 0, ''
  end
  if own and step ~= '' and not names[step] and steps >= 100 then
    letter = 'v'
  end
  if letter == 'o' then
    local head = note ~= '' and string.sub(note, 1, #note - #listed) or nonce .. ' 0 0 0 0:'
    local count, total, text = string.match(progress, '^(%d+) (%d+) (.*)$')
    if count then
      head = nonce .. string.format(' %.0f ', now) .. count .. ' ' .. total .. ' '
        .. #text .. ':' .. text
    end
    if step ~= '' then
      listed = names[step] and listed or listed .. #step .. ':' .. step
      redis.call('HSET', notes, field, head .. listed, front .. nonce .. step, result)
    else
      redis.call('HSET', notes, field, head .. listed)
    end
    if progress ~= '' and known[2] then
      look(notes, waiting(known[2], nonce), id)
    end
  end
  letters[i] = letter
end
return {'ok', now, table.concat(letters)}
