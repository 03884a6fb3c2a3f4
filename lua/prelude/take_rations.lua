
-- take_rations: what the limits of a key let a take lease of its jobs (see limits, key_limits).
-- Gives: ordered halts ration spend book
-- Expects: now us meter flow order_of lane_range key_of held_by till_of sweep looked bucket dead
-- Expects: leases lane keyed holders rates blockers
--
-- A start counts by the GCRA, as for the topic. Running jobs are counted in holders. An entry there
-- counts only while its job has a lease, so it cannot leak. That of a straggler counts until its
-- lease would be over: its job was cancelled or replaced, and its handler may still run.
--
-- If the jobs of each key run in their order, one of them runs at a time. A key is parked while a
-- job comes first that is in blockers: until it is due, or if it is dead, for ten minutes at a
-- time. An entry of blockers counts only while its job is in bucket or in dead.

local ordered, halts = order_of(flow)

-- census counts the running jobs of a key, and drops entries of those that have ended. It returns
-- when the first of their leases ends too. all is how many entries there are. It looks at 1,000 of
-- them, and counts those behind: too few start rather than too many.
local function census(key, all)
  local from, to = lane_range(key)
  local list, jobs = redis.call('ZRANGEBYLEX', holders, from, to, 'LIMIT', 0, 1000), {}
  for i, entry in ipairs(list) do
    jobs[i] = held_by(key, entry)
  end
  local ends = redis.call('ZMSCORE', leases, unpack(jobs))
  local spots = redis.call('HMGET', keyed, unpack(jobs))
  local first, stale = nil, {}
  for i, entry in ipairs(list) do
    local till = till_of(key, entry)
      or ends[i] and spots[i] and key_of(spots[i]) == key and tonumber(ends[i])
    if till and (till > now or not till_of(key, entry)) then
      first = math.min(first or math.huge, till)
    else
      stale[#stale + 1] = entry
    end
  end
  if #stale > 0 then
    redis.call('ZREM', holders, unpack(stale))
  end
  looked = looked + 5 + #list -- as much work as that many IDs
  return all - #stale, first
end

-- blocked returns until when a key waits for a job that comes first and is not ready, or nil. It
-- drops entries of blockers that do not count.
local function blocked(key)
  local from, to = lane_range(key)
  for _ = 1, 10 do
    local entry = redis.call('ZRANGEBYLEX', blockers, from, to, 'LIMIT', 0, 1)[1]
    if not entry then
      return nil
    end
    looked = looked + 1
    local _, spot, id = key_of(entry)
    local sound = spot and redis.call('HGET', keyed, id) == spot
    local due = sound and redis.call('ZSCORE', bucket, id)
    if due or sound and halts and redis.call('ZSCORE', dead, id) then
      if redis.call('ZRANGEBYLEX', lane, from, '(' .. entry, 'LIMIT', 0, 1)[1] then
        return nil
      end
      return due and math.ceil(due) or now + 600000
    end
    redis.call('ZREM', blockers, entry)
  end
  return now -- there can be more of them
end

-- A ration is what the limits of a key say: room is how many of its jobs may start now. If that is
-- 0, till is when to look again. counts is true if its running jobs are counted. With a rate, pace
-- is what meter says of it.
local function ration(key, running, period, size)
  local r = {room = math.huge, counts = running > 0}
  if period > 0 then
    local m = meter(period, size, tonumber(redis.call('ZSCORE', rates, key) or nil) or 0)
    if m.cut then
      redis.pcall('ZADD', rates, string.format('%.0f', m.tat), key)
    end
    r.pace, r.room = m, m.room
    r.till = (m.next + m.rest) / 1000 -- to the microsecond
  end
  if running > 0 and r.room > 0 then
    local n = redis.call('ZLEXCOUNT', holders, lane_range(key))
    if n >= running then
      local first
      n, first = census(key, n)
      r.till = math.ceil(first or now)
    end
    r.room = math.min(r.room, math.max(0, running - n))
  end
  local till = ordered and r.room > 0 and blocked(key)
  if till then
    r.room, r.till = 0, till
  end
  return r
end

-- keep_rates removes tats of the past, at most so many: they are as good as none. The others expire
-- a minute after the last one. So rates does not grow with the keys that ever were, even if nobody
-- promotes.
local function keep_rates(most)
  local clock = string.format('%.0f', us)
  local past = redis.call('ZRANGEBYSCORE', rates, '-inf', clock, 'LIMIT', 0, most)
  if #past > 0 then
    redis.call('ZREM', rates, unpack(past))
  end
  local top = redis.call('ZRANGE', rates, -1, -1, 'WITHSCORES')[2]
  if top then
    redis.pcall('PEXPIRE', rates, string.format('%.0f', (top - us) / 1000 + 60000))
  end
end

-- spend counts a start of a key that the topic lets start in so many µs. It returns in how many the
-- key does.
local function spend(m, wait)
  wait = math.max(wait, m.next - us)
  local tat = math.max(m.tat, us + wait) + m.emit
  m.next, m.tat = m.next + tat - m.tat, tat
  return wait
end

-- book writes the starts of keys, and their running jobs. It comes before the leases: if the script
-- ended after it, a start would be lost and not made twice.
local function book(names, rations, taken_of, holding)
  local tats = {}
  for i, r in ipairs(rations) do
    if r and r.pace and taken_of[i] then
      tats[#tats + 1] = string.format('%.0f', r.pace.tat)
      tats[#tats + 1] = names[i]
    end
  end
  if #tats > 0 then
    redis.call('ZADD', rates, unpack(tats))
    keep_rates(#tats)
  end
  if #holding > 0 then
    sweep(holders, leases, keyed) -- before the new ones, which have no lease yet
    redis.call('ZADD', holders, unpack(holding))
  end
end
