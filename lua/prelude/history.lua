-- What runs holds of a schedule: in the field of its name "<runs> <failures>", and of the newest hundred runs one "<time> <JSON>" each, in
-- fields of the name, a line feed (which no name has) and the number of the run modulo 100.
local runs_most = 100

-- schedule_of reads the id of a schedule's job: name, @ and slot, or name, ! and the time, which may have a dot and a number behind it.
local function schedule_of(id)
  return string.match(id, '^(.+)[@!]%d+%.?%d*$')
end

-- ran notes that a run of a schedule's job has ended. With pcall, and when all else is done: it never decides the fate of a job.
local function ran(runs, id, failures, note)
  local name = schedule_of(id)
  local log = name and redis.pcall('HGET', runs, name)
  local ended, bad = string.match(type(log) == 'string' and log or '', '^(%d+) (%d+)$')
  if ended then -- else the schedule is gone
    redis.pcall('HSET', runs, name, string.format('%d %d', ended + 1, bad + failures),
      name .. '\n' .. ended % runs_most, string.format('%.0f ', now) .. note)
  end
end

-- forget removes what runs holds of a schedule.
local function forget(runs, name)
  local fields = {name}
  for i = 0, runs_most - 1 do
    fields[i + 2] = name .. '\n' .. i
  end
  redis.call('HDEL', runs, unpack(fields))
end

-- flagged tells whether a job that is there is one of a schedule: its record says so. The records that one call reads for that are bounded,
-- for they may be large: beyond the first one and 1 MiB the id is believed.
local records_most, records_read = 1048576, 0
local function flagged(pool, id)
  local size = redis.call('HSTRLEN', pool, id)
  if records_read > 0 and records_read + size > records_most then
    return size > 0
  end
  records_read = records_read + size
  local record = redis.call('HGET', pool, id)
  return record and string.byte(record, 10) % 4 >= 2
end

-- scheduled tells whether a job is one of a schedule that has a history: its id looks like it, and its record says so.
local function scheduled(pool, runs, id)
  local name = schedule_of(id)
  return name and redis.pcall('HEXISTS', runs, name) == 1 and flagged(pool, id)
end
