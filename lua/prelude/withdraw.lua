-- withdraw removes a job in any state, and notifies the server that runs it. An ID deep in ready
-- stays there: take drops an ID without a record. noted means that the job is one of a schedule
-- whose history must record it. It returns the state of the job, or none if there is no such job.
local function withdraw(id, noted, pool, bucket, ready, leases, dead, attempts, errors, moved, runs,
    channel, topic)
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
    local note = {job = id, attempt = attempt, ['end'] = now, outcome = 'cancelled'}
    ran(runs, id, 0, cjson.encode(note))
  end
  return state
end

