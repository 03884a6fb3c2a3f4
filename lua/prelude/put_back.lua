
-- put_back: puts running jobs back into bucket (see retry, snooze).
-- Gives: delays put_back
-- Expects: now release

-- delays returns when jobs are due. The first value of their rows is a delay in ms.
local function delays(jobs, ids, where)
  local dues = {}
  for i in ipairs(ids) do
    dues[i] = now + jobs[where[i]]
  end
  return dues
end

-- put_back puts jobs back, due at dues, and ends their leases. verb is what has happened to them.
-- The second value of their rows is the tally for their entries in moved.
local function put_back(leases, bucket, moved, jobs, ids, where, dues, verb)
  for i, id in ipairs(ids) do
    redis.call('ZADD', bucket, dues[i], id)
  end
  release(leases, ids)
  for i, id in ipairs(ids) do
    redis.pcall('HSET', moved, id, dues[i] .. ' ' .. verb .. ' ' .. jobs[where[i] + 1])
  end
end
