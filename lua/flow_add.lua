-- flow_add: adds steps to a group, which is a flow without order, and starts them. It can close the
-- group: then no more can be added.
--
-- KEYS[1]    flows    hash, ID of a last step to how far its flow has come
-- KEYS[2]    steps    hash, the steps of flows
-- KEYS[3]    parcels  zset, what is on the way to other topics, by target and number
-- KEYS[4]    plans    hash, target to the plan by which its parcels are delivered
-- KEYS[5]    receipt  string, the last call of the series and its reply
-- ARGV[1]    number   number of this call in its series
-- ARGV[2]    channel  the control channel
-- ARGV[3]    topic    the topic's name, for the control channel
-- ARGV[4]    last     ID of the last step
-- ARGV[5]    name     of the flow
-- ARGV[6]    close    1: close the group, else 0
-- ARGV[7..]  list     for each step its definition, and its parcel without the time. At most 500
--                     and 1 MiB
--
-- A topic and an ID are one step, however often they are added. The link in the parcel has any
-- number of 8 digits, and so has the record: the script puts the number of the step there. A group
-- has at most 100,000 steps.
-- Returns {'ok', now, marks, release}. marks has one letter a step, n for added, r for there
-- already, v for refused because the group has too many steps. Or it is g, and nothing was done:
-- there is no such open group. A closed one can be closed again without steps. release is 1 if the
-- flow is complete, and the caller has to send flow_release.
-- Cost: O(steps × log N).
-- Uses: now receipt control parcels post flow
local flows, steps, parcels, plans, receipt = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local number, channel, topic, last, name = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local close, list, first = ARGV[6], ARGV, 7
local steps_most = 100000

local told, told_release = string.match(replay(receipt, number) or '', '^(%a*) (%d)$')
if told then
  return {'ok', now, told, tonumber(told_release)}
end

local flow = read_flow(redis.call('HGET', flows, last))
if not flow or flow.name ~= name or flow.state ~= 'o' or not string.find(flow.flags, 'g') then
  local closed = flow and flow.name == name and close == '1' and #list < first
  local answer, complete = closed and '' or 'g', closed and flow.state == 'r' and 1 or 0
  remember(receipt, number, answer .. ' ' .. complete)
  return {'ok', now, answer, complete}
end

-- with_number writes the number of a step into the link of its parcel, and into its record, where
-- it follows the name as an int 32 of msgpack.
local function with_number(row, n)
  local at = 2
  for _ = 1, 3 do
    local size, from = string.match(row, '^(%d+):()', at)
    at = from + size
  end
  local from = string.match(row, '^%d+:()', at)
  row = string.sub(row, 1, from + 7) .. n .. string.sub(row, from + 16)
  local _, stop = string.find(row, '\196\8' .. name .. '\210', from + 16, true)
  if stop then
    local digits = string.gsub(n, '%x%x', function(x) return string.char(tonumber(x, 16)) end)
    row = string.sub(row, 1, stop) .. digits .. string.sub(row, stop + 5)
  end
  return row
end

-- A wrong type must cause an error before the first write.
redis.call('ZCARD', parcels)
redis.call('HGET', plans, '#')
local marks, fields, posts, here = {}, {}, {}, {}
for at = first, #list, 2 do
  local step = read_step(list[at])
  local place = name .. '=' .. #step.topic .. ':' .. step.topic .. step.id
  local mark = 'n'
  if here[place] or redis.call('HEXISTS', steps, place) == 1 then
    mark = 'r'
  elseif flow.total >= steps_most then
    mark = 'v'
  else
    local n = string.format('%08x', flow.total)
    local field, state = name .. n, string.format('s %.0f', now)
    for _, word in ipairs({field, list[at], field .. 's', state, place, n}) do
      fields[#fields + 1] = word
    end
    posts[#posts + 1], posts[#posts + 2] = step.topic, with_number(list[at + 1], n)
    here[place], flow.total, flow.left = true, flow.total + 1, flow.left + 1
  end
  marks[#marks + 1] = mark
end
local release = 0
if close == '1' then
  flow.flags = string.gsub(flow.flags, 'g', '')
  flow.flags = flow.flags == '' and '-' or flow.flags
  if flow.left <= 0 then
    flow.state, release = 'r', 1
  end
end

if #fields > 0 then
  redis.call('HSET', steps, unpack(fields))
end
redis.call('HSET', flows, last, flow_text(flow))
if #posts > 0 then
  post(parcels, plans, posts)
  nudge(channel, 'relay', topic, 0, '')
end
marks = table.concat(marks)
remember(receipt, number, marks .. ' ' .. release)
return {'ok', now, marks, release}
