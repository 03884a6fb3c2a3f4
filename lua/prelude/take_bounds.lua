
-- take_bounds: the limits of a topic, as far as they bound a take as a whole (see limits).
-- Gives: bounds refusal
-- Expects: now us number_of bound at emit burst topic_rate meter come limit free patience listed
-- Expects: name leases holders meta idle
--
-- A take leases no more than can start immediately, unless the limits are far away: at most half of
-- the jobs that may run have leases, with those of this take, and half of the bucket is full
-- after it. Its starts are counted as if all were made after patience, so each is made no later
-- than it is counted, and no earlier than its rate allows. The number of running jobs is that of
-- the leases and of the stragglers, so it cannot leak. A take that is refused because of the rate
-- is told when to come again (see take_rate).

-- bounds returns how many jobs the take may lease, before it looks at any. limits and tat are the
-- fields flow and tat of meta; per_key: limits of keys are in force.
local function bounds(limits, tat, per_key)
  local most = limit
  local function cap(n, why)
    if n < most then
      most, bound = n, why
    end
  end
  local running, period, size = string.match(limits or '', '^(%d+) (%d+) (%d+) %d+ %d+ %d+')
  running, emit, burst = number_of(running), number_of(period), math.max(1, number_of(size))
  if running > 0 or emit > 0 or per_key then
    bound = 'on'
  end
  local leased, far = 0, bound and patience > 0 and not per_key
  if running > 0 then
    local alive = '[' .. string.char(0) .. '1' .. string.format('%017.3f', now + 0.001)
    local stragglers = redis.pcall('ZLEXCOUNT', holders, alive, '(' .. string.char(1))
    stragglers = type(stragglers) == 'number' and stragglers or 0
    leased = math.max(0, redis.call('ZCARD', leases) - 1) + stragglers -- no anchor
    far = far and leased + most <= running / 2
  end
  if emit > 0 then
    topic_rate = meter(emit, burst, number_of(tat))
    at = topic_rate.tat
    if topic_rate.cut then
      redis.pcall('HSET', meta, 'tat', string.format('%.0f', at)) -- so that this stall ends
    end
    local from = most > free and math.max(at, us + 1000 * patience) or at
    far = far and from + most * emit <= us + burst * emit / 2
    at = far and from or at
  end
  if far then
    bound = 'far'
    return most
  end
  if bound then
    cap(free, 'free')
  end
  if running > 0 then
    cap(running - leased, 'limit')
  end
  if emit > 0 then
    cap(topic_rate.room, 'rate')
  end
  return most
end

-- refusal is the reply to a take that may lease nothing although jobs wait. per_key: see limited in
-- the reply of take.
local function refusal(told, per_key)
  if listed == '1' then
    redis.pcall('ZREM', idle, name)
  end
  if bound == 'free' then
    return {'busy', now, 0, per_key}
  elseif bound == 'limit' then
    return {'limit', now}
  end
  return {'rate', now, come(told, true)}
end
