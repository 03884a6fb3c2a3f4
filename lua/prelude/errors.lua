
-- Gives: failed
-- Expects: append

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
