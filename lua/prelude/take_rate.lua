-- take_rate: what a rate says of this take, and what the starts of the topic are.
-- Gives: number_of bound at emit burst us topic_rate promised meter few come wait_of delays start
-- Gives: starts_of
-- Expects: time meta spaced
--
-- Starts are counted by the GCRA: tat is the time at which the bucket would be empty.
--
-- Starts are taken together, so that a take and the calls that follow it serve many. A bucket that
-- holds the starts of 30 ms or more can wait for that: what has been refused comes when a tenth of
-- them, at most those of 10 ms, have gathered. A smaller one would lose starts meanwhile. So a take
-- leases the jobs of the next starts, too, if its server starts each at its time (spaced): up to 15
-- ms ahead, and not before the first of them is within 6 ms. A server comes 5 ms before it, and
-- another one 2.5 ms later, because no start may be lost if one is late.
--
-- A server of v0.1.0 would cut such a tat, and make the same starts again. So the topic is held
-- until the last of them. The field ahead says that this hold is none for the others.

-- number_of reads a field of meta. A damaged one counts as none: it must not end every take.
local function number_of(text)
  return tonumber(text or 0) or 0
end

-- bound is what limits the take, and at the tat. emit is the time of one start, and burst how many
-- starts can be made at once.
local bound, at, emit, burst = nil, nil, 0, 0
local us = time[1] * 1000000 + time[2]
local topic_rate -- what meter returned for the topic
local promised = 0 -- the latest start that a take has leased a job for, Unix ms

-- meter reads a rate, of which each start takes a period and size can be made at once. room is how
-- many starts this take gets, none if the next one is not near. rest is how long after the next
-- start another take is to come. step is how far takes of different servers are spaced, and most
-- how far they are put off. cut says that tat was not credible.
local function meter(period, size, tat)
  local length = size * period
  local m, ahead = {emit = period, step = period, rest = 0, near = 0}, 0
  m.most = math.min(math.max(length, 10 * period, 100000), 1000000)
  if length >= 30000 then
    m.step = math.max(period, math.min(10000, math.floor(length / 10)))
    m.rest = m.step - period
  elseif spaced == 1 then
    ahead, m.near, m.rest, m.step = 15000, 6000, -5000, math.max(period, 2500)
  end
  -- The clock was set back, or the limits have changed. A start of a key with a larger bucket can
  -- be counted before its time, too: that which the topic names for it.
  m.cut = tat > us + length + 15000
  m.tat = m.cut and us + length or math.max(us, tat)
  m.next = m.tat - length + period
  m.room = m.next <= us + m.near and math.floor((us + ahead + length - m.tat) / period) or 0
  return m
end

-- until_next returns when the next start is, in µs from now.
local function until_next()
  return at - (burst - 1) * emit - us
end

-- few reports whether a take at once would get few starts or none, because others are to gather.
local function few()
  local m = topic_rate
  return m and m.rest ~= 0 and 2 * (until_next() + m.rest) >= m.step
end

-- come returns when the server of this take is to take again, in µs from now. A take that is
-- refused a moment before that time gets it, because it was on its way there. Otherwise each server
-- gets a time of its own, because one that comes with others is refused. last is that of the one
-- before. Servers that get other work do not come at theirs, so none is told a late one.
local function come(last, refused)
  local wait = math.max(0, until_next() + topic_rate.rest)
  if not refused and wait == 0 then -- something else has ended the take, too
    return 0
  elseif refused and wait <= math.min(emit / 2, 100000)
    or not refused and topic_rate.step == emit then
    return math.ceil(wait)
  end
  local promise = math.max(us + wait, number_of(last) + topic_rate.step)
  if promise > us + wait + topic_rate.most then
    promise = us + wait
  end
  redis.pcall('HSET', meta, 'promise', string.format('%.0f', promise))
  return math.ceil(promise - us)
end

-- wait_of returns after how many µs the topic lets one of the jobs of this take start.
local function wait_of(job)
  return at and math.max(0, at + (job - burst) * emit - us) or 0
end

-- start counts the starts of this take so far. It comes before the leases: if the script ended
-- after it, a start would be lost and not made twice. delays has the waits of those jobs that their
-- keys let start later.
local delays = {}
local function start(jobs)
  local set, last = {}, wait_of(jobs)
  for _, wait in pairs(delays) do
    last = math.max(last, wait)
  end
  if at then
    set = {'tat', string.format('%.0f', at + jobs * emit)}
  end
  if last > 0 then
    promised = math.max(promised, math.ceil((us + last) / 1000))
    local till, n = string.format('%.0f', promised), #set
    set[n + 1], set[n + 2], set[n + 3], set[n + 4] = 'hold', till, 'ahead', till
    set[n + 5], set[n + 6], set[n + 7], set[n + 8] = 'holdby', 'rate', 'holdwhy', ''
  end
  if #set > 0 then
    redis.call('HSET', meta, unpack(set))
  end
end

-- starts_of returns the waits of the first jobs of this take, or nil if all may start at once.
local function starts_of(jobs)
  if wait_of(jobs) == 0 and not next(delays) then
    return nil
  end
  local starts = {}
  for i = 1, jobs do
    starts[i] = math.ceil(delays[i] or wait_of(i))
  end
  return starts
end
