
-- take_rate: what the limits of a topic say of this take, and its starts.
-- Gives: number_of bound at emit burst us left start
-- Expects: time meta
--
-- Starts are counted by the GCRA: tat is the time at which the bucket would be empty.

-- number_of reads a field of meta. A damaged one counts as none: it must not end every take.
local function number_of(text)
  return tonumber(text or 0) or 0
end

-- bound is what limits the take, and at the tat. emit is the time of one start, and burst how many
-- starts can be made at once.
local bound, at, emit, burst = nil, nil, 0, 0
local us = time[1] * 1000000 + time[2]

-- left returns the time until the next start.
local function left()
  return math.max(0, at - (burst - 1) * emit - us)
end

-- start counts the starts of this take so far. It comes before the leases: if the script ended
-- after it, a start would be lost and not made twice.
local function start(jobs)
  if at then
    redis.call('HSET', meta, 'tat', string.format('%.0f', at + jobs * emit))
  end
end
