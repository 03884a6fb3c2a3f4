
-- take_gather: jobs of all keys that are gathered for a batch.
-- Gives: gather
-- Expects: now limit enough within batch name by_key key_running rule_of number_of lane_range ready
-- Expects: handoff lane turn held parked holders rules meta idle
--
-- Jobs are gathered from the take that finds too few of them on. The field gather of meta has the
-- end of that. The server waits in idle meanwhile, because each job that becomes ready can be the
-- last one that is missing. Jobs that do not fill another batch, and are too few for one, stay.

-- able counts the ready jobs that have keys and can run: those of held and parked keys cannot, and
-- those of a key with a limit only as far as that allows. It looks at no more keys than a take can
-- serve, and takes the jobs of others for enough.
local function able()
  if redis.call('EXISTS', held, parked) == 0 and not by_key then
    return redis.call('ZCARD', lane)
  end
  local keys, jobs = redis.pcall('ZRANGE', turn, 0, 249), 0
  if #keys == 0 then
    return 0
  end
  local holds = redis.pcall('ZMSCORE', held, unpack(keys))
  local waits = by_key and redis.pcall('ZMSCORE', parked, unpack(keys)) or {}
  local ruled = by_key and redis.pcall('HMGET', rules, unpack(keys)) or {}
  for i, key in ipairs(keys) do
    local stopped = math.max(number_of(holds[i]), number_of(waits[i])) > now
    if key ~= '' and not stopped then
      local from, to = lane_range(key)
      local n = redis.call('ZLEXCOUNT', lane, from, to)
      local _, running = rule_of(ruled[i] or nil, key_running, 0, 1)
      if running > 0 then
        n = math.min(n, math.max(0, running - redis.call('ZLEXCOUNT', holders, from, to)))
      end
      jobs = jobs + n
    end
  end
  if #keys == 250 and redis.call('ZCARD', turn) > 250 then -- those behind can be enough
    jobs = math.max(jobs, enough)
  end
  return jobs
end

-- gather returns how many jobs the take may lease, and the reply if it leases none because they are
-- gathered. ending is the end of that, or 0.
local function gather(ending)
  local jobs = redis.call('LLEN', ready) + redis.call('LLEN', handoff)
  if jobs > 0 then -- without the wake-ups
    jobs = jobs - #redis.call('LPOS', ready, '', 'COUNT', 0, 'MAXLEN', 1000)
      - #redis.call('LPOS', handoff, '', 'COUNT', 0, 'MAXLEN', 1000)
  end
  jobs = jobs + able()
  local over = ending > 0 and ending <= now
  if jobs > 0 and jobs < enough then
    if ending == 0 or ending > now + within then
      ending = now + within
      redis.call('HDEL', meta, 'gather') -- after a deletion, the script can write at maxmemory
      redis.call('HSET', meta, 'gather', string.format('%.0f', ending))
    end
    if ending > now then
      local put = name ~= '' and redis.pcall('ZADD', idle, now, name)
      return 0, {'gather', now, ending - now, type(put) == 'number' and 1 or 0}
    end
  end
  if ending > 0 then
    redis.call('HDEL', meta, 'gather')
  end
  local rest = jobs % batch
  if not over and rest > 0 and rest < enough then
    return math.min(limit, jobs - rest)
  end
  return limit
end
