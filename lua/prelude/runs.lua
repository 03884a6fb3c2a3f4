-- What runs holds of a schedule: "<entries> <runs> <failures> <size> " and then the entries, netstrings of "<time> <JSON>" without a
-- comma, oldest first: the newest hundred, none that is older than 400 days when another one comes. size is that of the last of them.
local runs_most, runs_age = 100, 34560000000

-- ran notes that a run of a schedule's job has ended. With pcall, and when all else is done: it never decides the fate of a job.
local function ran(runs, id, failures, note)
  local name = string.match(id, '^(.+)[@!]%d+$')
  local log = name and redis.pcall('HGET', runs, name)
  if type(log) ~= 'string' then
    return -- the schedule is gone
  end
  local head, entries, ended, bad = string.match(log, '^((%d+) (%d+) (%d+) %d+ )')
  if not head then
    return -- not ours
  end
  local first, left = #head + 1, tonumber(entries)
  while left > 0 do
    local size, at = string.match(string.sub(log, first, first + 30), '^(%d+):(%d+) ')
    if size and left < runs_most and tonumber(at) >= now - runs_age then
      break
    end
    first = size and first + #size + 1 + size or #log + 1
    left = size and left - 1 or 0
  end
  local entry = string.format('%.0f ', now) .. note
  redis.pcall('HSET', runs, name, string.format('%d %d %d %d ', left + 1, ended + 1, bad + failures, #entry)
    .. string.sub(log, first) .. #entry .. ':' .. entry)
end

-- scheduled tells whether a job is one of a schedule: its id looks like it, and its record says so.
local function scheduled(pool, id)
  local record = string.find(id, '[@!]%d+$') and redis.call('HGET', pool, id)
  return record and string.byte(record, 10) >= 2
end
