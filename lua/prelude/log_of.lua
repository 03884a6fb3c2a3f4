
-- log_of: how dead jobs have ended, for those who wait for them.
-- Gives: log_of

-- log_of returns a function that returns the letter of that, and the error log of a job.
local function log_of(logs)
  return function(_, id)
    local log = redis.pcall('HGET', logs, id)
    return 'd', type(log) == 'string' and log or ''
  end
end
