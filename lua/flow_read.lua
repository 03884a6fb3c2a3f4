-- flow_read: reads a flow and some of its steps. Writes nothing.
--
-- KEYS[1]  flows  hash, ID of a last step to how far its flow has come
-- KEYS[2]  steps  hash, the steps of flows
-- ARGV[1]  last   ID of the last step
-- ARGV[2]  from   number of the first step to read
-- ARGV[3]  count  most steps to read, at most 1,000
--
-- Returns {'ok', now, flow, defs, states, next}: the value of the flow (empty: there is no such
-- flow), and of the steps from the first one on their definitions and their states, about 1 MiB of
-- them. Both are empty of a step that is not there. next is the number of the next step, 0 at the
-- end.
-- Cost: O(steps).
-- Uses: now flow
local flows, steps = KEYS[1], KEYS[2]
local last, from, count = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local value = redis.call('HGET', flows, last) or ''
local flow = read_flow(value)
if not flow then
  return {'ok', now, value, {}, {}, 0}
end
local defs, states, bytes, n = {}, {}, 0, from
local stop = math.min(flow.total, from + math.min(count, 1000))
while n < stop and bytes < 1048576 do
  local fields, some = {}, math.min(stop - n, 50)
  for i = 0, some - 1 do
    local field = flow.name .. string.format('%08x', n + i)
    fields[2 * i + 1], fields[2 * i + 2] = field, field .. 's'
  end
  local found = redis.call('HMGET', steps, unpack(fields))
  for i = 1, #fields, 2 do
    defs[#defs + 1], states[#states + 1] = found[i] or '', found[i + 1] or ''
    bytes = bytes + #defs[#defs] + #states[#states]
  end
  n = n + some
end
return {'ok', now, value, defs, states, n < flow.total and n or 0}
