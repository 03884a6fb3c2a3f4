
-- Gives: runs_most schedule_of ran forget records_most records_read flagged scheduled
-- Expects: now

-- The fields of a schedule in runs. The field with its name holds "<runs> <failures>". Each of the
-- newest hundred runs has a field with "<time> <JSON>". Its name is the schedule's name, a line
-- feed (which no name contains) and the number of the run modulo 100.
local runs_most = 100

-- schedule_of parses the ID of a schedule's job: name, @ and slot, or name, ! and the time, which
-- can be followed by a dot and a number. It returns the name.
local function schedule_of(id)
  return string.match(id, '^(.+)[@!]%d+%.?%d*$')
end

-- ran notes that a run of a schedule's job has finished. With pcall, and after everything else: the
-- history never decides the fate of a job.
local function ran(runs, id, failures, note)
  local name = schedule_of(id)
  local log = name and redis.pcall('HGET', runs, name)
  local ended, bad = string.match(type(log) == 'string' and log or '', '^(%d+) (%d+)$')
  if ended then -- otherwise the schedule is gone
    redis.pcall('HSET', runs, name, string.format('%d %d', ended + 1, bad + failures),
      name .. '\n' .. ended % runs_most, string.format('%.0f ', now) .. note)
  end
end

-- forget deletes the history of a schedule.
local function forget(runs, name)
  local fields = {name}
  for i = 0, runs_most - 1 do
    fields[i + 2] = name .. '\n' .. i
  end
  redis.call('HDEL', runs, unpack(fields))
end

-- flagged reports whether a schedule made a job, by the job's record. Records can be large, so the
-- records that one call reads for this are limited: beyond the first one and 1 MiB, the ID decides.
local records_most, records_read = 1048576, 0
local function flagged(pool, id)
  local size = redis.call('HSTRLEN', pool, id)
  if records_read > 0 and records_read + size > records_most then
    return size > 0
  end
  records_read = records_read + size
  local record = redis.call('HGET', pool, id)
  return record and (string.byte(record, 10) or 0) % 4 >= 2
end

-- scheduled reports whether a schedule with a history made a job, by the job's ID and record.
local function scheduled(pool, runs, id)
  local name = schedule_of(id)
  return name and redis.pcall('HEXISTS', runs, name) == 1 and flagged(pool, id)
end
