-- flow_started: lists steps of a flow that have started long ago and have not ended. Writes
-- nothing.
--
-- KEYS[1]  flows    hash, ID of a last step to how far its flow has come
-- KEYS[2]  steps    hash, the steps of flows
-- KEYS[3]  parcels  zset, what is on the way to other topics, by target and number
-- ARGV[1]  last     ID of the last step
-- ARGV[2]  name     of the flow
-- ARGV[3]  from     0, or the next of the call before
-- ARGV[4]  age      ms, since when they have started at least
--
-- A step to whose topic something is on the way is left out: it may not be there yet.
-- Returns {'ok', now, numbers, defs, next}: of each such step among 500 its number and its
-- definition, about 1 MiB of them. next is the from to go on with, 0 at the end.
-- Cost: O(500 × log N).
-- Uses: now parcels bound_for flow
local flows, steps, parcels = KEYS[1], KEYS[2], KEYS[3]
local last, name, from, age = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local flow = read_flow(redis.call('HGET', flows, last))
local total = flow and flow.name == name and flow.total or 0
local numbers, defs, bytes, busy = {}, {}, 0, {}

local stop = math.min(total, from + 500)
local fields, n = {}, from
for i = from, stop - 1 do
  fields[#fields + 1] = name .. string.format('%08xs', i)
end
local states = #fields > 0 and redis.call('HMGET', steps, unpack(fields)) or {}
for i, state in ipairs(states) do
  if bytes > 1048576 then
    break
  end
  n = from + i
  local since = tonumber(string.match(state or '', '^s (%d+)$') or nil)
  if since and since <= now - age then
    local definition = redis.call('HGET', steps, string.sub(fields[i], 1, 16)) or ''
    local step = read_step(definition)
    bytes = bytes + #definition
    if step and busy[step.topic] == nil then
      busy[step.topic] = bound_for(parcels, step.topic)
    end
    if step and not busy[step.topic] then
      numbers[#numbers + 1], defs[#defs + 1] = from + i - 1, definition
    end
  end
end
return {'ok', now, numbers, defs, n < total and n or 0}
