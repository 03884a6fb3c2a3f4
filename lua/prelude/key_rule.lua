
-- Gives: flow_of rule_of

-- flow_of reads the limits of a topic that hold for each of its keys, from the field flow of meta:
-- the most running jobs, the time of one start in µs, and how many starts can be made at once. 0 is
-- no limit.
local function flow_of(flow)
  local running, emit, burst = string.match(flow or '', '^' .. string.rep('%d+ ', 6)
    .. '(%d+) (%d+) (%d+)')
  return tonumber(running or 0), tonumber(emit or 0), math.max(1, tonumber(burst or 1))
end

-- rule_of reads what is set for a key: "<weight>", or "<weight> <running> <emit> <burst> <starts>
-- <period> <strict>". It returns the weight and the three limits. Those that are 0 are the given
-- ones, which hold for each key.
local function rule_of(rule, running, emit, burst)
  local weight, rest = string.match(rule or '', '^(%d+)(.*)$')
  local most, period, size = string.match(rest or '', '^ (%d+) (%d+) (%d+)')
  if tonumber(most or 0) > 0 then
    running = tonumber(most)
  end
  if tonumber(period or 0) > 0 then
    emit, burst = tonumber(period), math.max(1, tonumber(size))
  end
  return math.max(1, tonumber(weight or 1)), running, emit, burst
end
