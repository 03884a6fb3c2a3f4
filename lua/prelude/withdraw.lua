-- withdraw takes a job out of whatever state it is in, and tells the worker that runs it. Deep in ready its id stays behind: take drops an
-- id without a record. noted: it is a job of a schedule, whose history is to tell of it. Returns the state the job was in, or none when
-- there is no such job.
local function withdraw(id, noted, pool, bucket, ready, leases, dead, attempts, errors, moved, runs, channel, topic)
  if redis.call('HDEL', pool, id) == 0 then
    return 'none'
  end
  local state, fence = 'ready', redis.call('ZSCORE', leases, id)
  if redis.call('ZREM', bucket, id) == 1 then
    state = 'scheduled'
  end
  if redis.call('ZREM', dead, id) == 1 then
    state = 'dead'
  end
  if fence then
    state = 'running'
    release(leases, {id})
    nudge(channel, 'cancel', topic, fence, id)
  end
  if state == 'ready' then
    unready(ready, id)
  end
  local tried = noted and redis.pcall('HGET', attempts, id)
  redis.pcall('HDEL', attempts, id)
  redis.pcall('HDEL', errors, id)
  redis.pcall('HDEL', moved, id)
  if noted then
    local attempt = (type(tried) == 'string' and tried or 0) + 1
    ran(runs, id, 0, cjson.encode({job = id, attempt = attempt, ['end'] = now, outcome = 'cancelled'}))
  end
  return state
end

