
-- Gives: append failed

-- append adds an entry to a job's error log. The log consists of netstrings, at most eleven: the
-- first one and the newest ten.
local function append(log, entry)
  local starts, at = {}, 1
  log = log or ''
  while at <= #log do
    local size = string.match(string.sub(log, at, at + 9), '^(%d+):')
    if not size then
      break -- not ours: keep the readable part
    end
    starts[#starts + 1] = at
    at = at + #size + 1 + size
  end
  if #starts > 10 then
    log = string.sub(log, 1, starts[2] - 1) .. string.sub(log, starts[3], at - 1)
  end
  return log .. #entry .. ':' .. entry
end

-- failed notes that attempts (0 or 1) have finished, and how, if entry is not empty. With pcall,
-- and after the job has its new place: the log never decides the fate of a job.
local function failed(attempts, errors, id, n, entry)
  if n ~= '0' then
    redis.pcall('HINCRBY', attempts, id, n)
  end
  local log = entry ~= '' and redis.pcall('HGET', errors, id)
  if entry ~= '' and type(log) ~= 'table' then
    redis.pcall('HSET', errors, id, append(log, entry))
  end
end
