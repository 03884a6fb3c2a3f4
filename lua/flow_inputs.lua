-- flow_inputs: reads how the steps have ended for which a step waits. Writes nothing.
--
-- KEYS[1]  flows   hash, ID of a last step to how far its flow has come
-- KEYS[2]  steps   hash, the steps of flows
-- ARGV[1]  last    ID of the last step
-- ARGV[2]  name    of the flow
-- ARGV[3]  number  of the step, -1 for the last one, which waits for all
-- ARGV[4]  from    0, or the next of the call before
--
-- Returns {'ok', now, numbers, defs, states, outputs, next}: of each of these steps its number, its
-- definition, its state and its output, about 1 MiB of them, at most 1,000. What is not there is
-- empty. next is the from to go on with, 0 at the end, -1 if there is no such flow or step.
-- Cost: O(steps).
-- Uses: now flow
local flows, steps = KEYS[1], KEYS[2]
local last, name, number, from = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local flow = read_flow(redis.call('HGET', flows, last))
local before = flow and flow.name == name and ''
if before and number >= 0 then
  local step = read_step(redis.call('HGET', steps, name .. string.format('%08x', number)) or '')
  before = step and step.before
end
local numbers, defs, states, outputs = {}, {}, {}, {}
if not before then
  return {'ok', now, numbers, defs, states, outputs, -1}
end
local total = number >= 0 and #before / 8 or flow.total
local bytes, at = 0, from
while at < total and #numbers < 1000 do
  local n = number < 0 and string.format('%08x', at) or string.sub(before, 8 * at + 1, 8 * at + 8)
  local field = name .. n
  local size = redis.call('HSTRLEN', steps, field) + redis.call('HSTRLEN', steps, field .. 'o')
  if bytes > 0 and bytes + size > 1048576 then
    break
  end
  local found = redis.call('HMGET', steps, field, field .. 's', field .. 'o')
  local i = #numbers + 1
  numbers[i] = tonumber(n, 16)
  defs[i], states[i], outputs[i] = found[1] or '', found[2] or '', found[3] or ''
  bytes, at = bytes + size + #states[i], at + 1
end
return {'ok', now, numbers, defs, states, outputs, at < total and at or 0}
