-- flow_begin: looks how flows have come so far, before their last steps run.
--
-- KEYS[1]    flows  hash, ID of a last step to how far its flow has come
-- KEYS[2]    steps  hash, the steps of flows
-- ARGV[1..]  jobs   for each last step: ID, and the name of its flow. At most 500
--
-- Returns {'ok', now, states, texts}. states has for each flow its state and its flags, with a
-- space between them, or a - if there is no such flow. texts has for each flow a text in JSON, or
-- an empty one. Of a flow that has failed: the step because of which, its topic and its id, the
-- outcome and its text. Of an open one: how many are left, and up to three that are missing, with
-- topic and id. A step is missing if it has not ended. The first 1,000 are looked at.
-- Cost: O(jobs + steps).
-- Uses: now flow
local flows, steps = KEYS[1], KEYS[2]
local jobs, first, width = ARGV, 1, 2

local looked = 0

-- missing returns up to three steps that have not ended.
local function missing(flow)
  local list, n = {}, 0
  while n < flow.total and #list < 3 and looked < 1000 do
    local fields = {}
    for i = n, math.min(flow.total, n + 100) - 1 do
      fields[#fields + 1] = flow.name .. string.format('%08xs', i)
    end
    for i, state in ipairs(redis.call('HMGET', steps, unpack(fields))) do
      if #list < 3 and state and not ended_state(state) then
        local step = read_step(redis.call('HGET', steps, string.sub(fields[i], 1, 16)) or '')
        list[#list + 1] = step and {topic = step.topic, id = step.id} or nil
      end
    end
    n, looked = n + #fields, looked + #fields
  end
  return cjson.encode({left = flow.left, missing = #list > 0 and list or nil})
end

-- cause returns the step because of which a flow has failed.
local function cause(flow)
  local field = flow.name .. string.format('%08x', tonumber(flow.why) or 0)
  local found = redis.call('HMGET', steps, field, field .. 's')
  local step = read_step(found[1] or '')
  local letter, text = string.match(found[2] or '', '^(%a) %d+ (.*)$')
  if not step or not letter or flow.why == '-' then
    return ''
  end
  return cjson.encode({step = tonumber(flow.why), topic = step.topic, id = step.id,
    outcome = letter, text = text})
end

local states, texts = {}, {}
for at = first, #jobs, width do
  local flow, n = read_flow(redis.call('HGET', flows, jobs[at])), #states + 1
  states[n], texts[n] = '-', ''
  if flow and flow.name == jobs[at + 1] then
    states[n] = flow.state .. ' ' .. flow.flags
    if flow.state == 'f' or flow.why ~= '-' then
      texts[n] = cause(flow)
    elseif flow.state == 'o' then
      texts[n] = missing(flow)
    end
  end
end
return {'ok', now, states, texts}
