
-- flow: the flows whose last steps are jobs of the topic.
-- Gives: read_flow flow_text read_step ended_state

-- read_flow reads a value of flows. It returns nothing if there is none, or it is damaged.
local function read_flow(text)
  local state, flags, total, left, failed, bytes, started, why = string.match(text or '',
    '^(%a) (%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+)$', 9)
  if state then
    return {name = string.sub(text, 1, 8), state = state, flags = flags, total = tonumber(total),
      left = tonumber(left), failed = tonumber(failed), bytes = tonumber(bytes),
      started = tonumber(started), why = why}
  end
end

-- flow_text is the value of a flow.
local function flow_text(one)
  return one.name .. string.format('%s %s %.0f %.0f %.0f %.0f %.0f %s', one.state, one.flags,
    one.total, one.left, one.failed, one.bytes, one.started, one.why)
end

-- read_step reads the definition of a step: its policy, its topic and its ID, and the numbers of
-- those for which it waits and of those that wait for it, 8 hexadecimal digits each.
local function read_step(text)
  local fields, at = {}, 2
  for i = 1, 4 do
    local size, from = string.match(text, '^(%d+):()', at)
    if not size then
      return
    end
    at = from + size
    fields[i] = string.sub(text, from, at - 1)
  end
  return {policy = string.sub(text, 1, 1), topic = fields[1], id = fields[2], before = fields[3],
    after = fields[4]}
end

-- ended_state reports whether a state is that of a step that has ended.
local function ended_state(state)
  return string.find(state, '^[^ws] ') ~= nil
end
