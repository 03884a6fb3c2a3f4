
-- take_reply: the reply of a take, and the receipt of it.
-- Gives: answer note known
-- Expects: now number lease name attempts moved receipt idle

-- answer adds the known data of the jobs to their records. With pcall: missing data must not cost
-- the jobs.
local function answer(ending, ids, records, more, waits, bound, left, limited, starts)
  local tried, due = false, false
  if #ids > 0 and redis.call('EXISTS', attempts, moved) > 0 then
    tried = redis.pcall('HMGET', attempts, unpack(ids))
    due = redis.pcall('HMGET', moved, unpack(ids))
  end
  tried, due = tried and not tried.err and tried, due and not due.err and due
  if limited or starts or left then -- a nil would end the reply
    bound, left, limited = bound or false, left or false, limited or false
  end
  return {'ok', now, ending, ids, records, tried, due, more and 1 or 0, waits, bound, left,
    limited, starts}
end

-- note writes the receipt. patient says that the reply has the end of patience. With pcall: at
-- worst the jobs wait until their leases are over.
local function note(ending, more, ids, starts, patient)
  local rest = (more and '1' or '0') .. (patient and 'p' or '')
    .. (starts and ' ' .. table.concat(starts, ' ') or '')
  redis.pcall('DEL', receipt)
  redis.pcall('RPUSH', receipt, number, ending, rest, unpack(ids))
  redis.pcall('PEXPIRE', receipt, lease)
end

-- known returns 1 if the server is in idle, without a change.
local function known()
  local since_when = name ~= '' and redis.pcall('ZSCORE', idle, name)
  return type(since_when) == 'string' and 1 or 0
end
