-- arrive: notes at home how steps of flows have ended, and starts the steps that waited for them.
--
-- KEYS[1]    flows    hash, ID of a last step to how far its flow has come
-- KEYS[2]    steps    hash, the steps of flows
-- KEYS[3]    parcels  zset, what is on the way to other topics, by target and number
-- KEYS[4]    plans    hash, target to the plan by which its parcels are delivered
-- KEYS[5]    stats    hash, counter to number
-- KEYS[6]    receipt  string, the last call of the series and its reply
-- ARGV[1]    number   number of this call in its series
-- ARGV[2]    channel  the control channel
-- ARGV[3]    topic    the topic's name, for the control channel
-- ARGV[4..]  ends     for each end: a netstring of the ID of the last step, the name of the flow,
--                     the number of the step (8 hexadecimal digits), the letter of the outcome, and
--                     its text. After o: a netstring of the JSON about the run, and its output
--
-- A step that has ended before, or that is not known, is left alone. A step starts when all for
-- which it waits have ended well, or all have ended if its policy is i. Otherwise it is skipped. A
-- flow without the flag i has failed when a step for which no other one waits has ended badly: from
-- then on none of its steps starts. Steps start when all ends of the call are noted. At most 500
-- ends and 1 MiB a call.
-- Returns {'ok', now, ids, handled, names}: the IDs and names of the flows that have become
-- complete or have failed now, which are to be released (see flow_release), and how many of the
-- ends were handled: at least one, and otherwise as many as end or start 1,000 steps, or look at
-- 4,000 of them, or store 1 MiB.
-- Cost: O(ends + steps × log N).
-- Uses: now receipt stats control parcels post link flow
local flows, steps, parcels, plans = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local stats, receipt = KEYS[5], KEYS[6]
local number, channel, topic = ARGV[1], ARGV[2], ARGV[3]
local ends, first = ARGV, 4
local output_most, outputs_most = 65536, 1048576

local told = replay(receipt, number)
if told then
  local handled, at = string.match(told, '^(%d+) ()')
  local lists = {{}, {}}
  for i = 1, 500 do
    local size, from = string.match(told, '^(%d+):()', at)
    if not size then
      break
    end
    at = from + size + 8
    lists[1][i], lists[2][i] = string.sub(told, from, at - 9), string.sub(told, at - 8, at - 1)
  end
  return {'ok', now, lists[1], tonumber(handled), lists[2]}
end

-- A wrong type must cause an error before the first write.
redis.call('ZCARD', parcels)
redis.call('HGET', plans, '#')
redis.call('HDEL', steps, '') -- after a deletion, the script can write at maxmemory

local opened, touched = {}, {} -- flows by ID; false: none
local known, puts, drops, posts = {}, {}, {}, {} -- known: steps by name and number
local ready, changes, looks, bytes, failures = {}, 0, 0, 0, 0

local function flow_named(id, name)
  if opened[id] == nil then
    opened[id] = read_flow(redis.call('HGET', flows, id)) or false
    if opened[id] then
      opened[id].id, opened[id].was = id, opened[id].state
    end
  end
  return opened[id] and opened[id].name == name and opened[id]
end

-- read_at reads steps by their fields, which name the flow and the number.
local function read_at(fields)
  local names = {}
  for i, key in ipairs(fields) do
    names[2 * i - 1], names[2 * i] = key, key .. 's'
  end
  local found = redis.call('HMGET', steps, unpack(names))
  for i, key in ipairs(fields) do
    local definition, state = found[2 * i - 1], found[2 * i]
    local one = false
    if definition and state then
      -- For most steps no other one waits. Then the definition ends with a colon.
      one = string.byte(definition, -1) == 58 and {after = '', unread = definition}
        or read_step(definition)
    end
    if one then
      one.state, one.field = state, key
    end
    known[key] = one or false
  end
end

local function step_at(flow, n)
  local key = flow.name .. n
  if known[key] == nil then
    read_at({key})
    looks = looks + 1
  end
  return known[key]
end

-- whole returns a step with its policy and its topic. It returns nothing if these are damaged.
local function whole(one)
  if one and one.unread then
    local read = read_step(one.unread)
    if not read then
      return
    end
    one.unread, one.policy, one.topic = nil, read.policy, read.topic
  end
  return one
end

local function put(one, state)
  one.state = state
  puts[one.field .. 's'] = state
end

-- keep_output keeps the output of a step, unless it or those of the flow are too large. It returns
-- the JSON about the run.
local function keep_output(flow, one, text)
  local size, from = string.match(text, '^(%d+):()')
  if not size then
    return ''
  end
  local output = string.sub(text, from + size)
  if output ~= '' and #output <= output_most and flow.bytes + #output <= outputs_most then
    puts[one.field .. 'o'] = output
    flow.bytes, bytes = flow.bytes + #output, bytes + #output
  end
  return string.sub(text, from, from + size - 1)
end

local stamp = string.format(' %.0f ', now)

-- finish notes the end of a step, and what follows for those that wait for it. cause is the number
-- of the step because of which it has ended badly.
local function finish(flow, n, letter, text)
  local queue, at = {{n, letter, text, nil}}, 1
  while queue[at] do
    local how, rest, cause = queue[at][2], queue[at][3], queue[at][4]
    local one = step_at(flow, queue[at][1])
    at = at + 1
    if one and not ended_state(one.state) then
      cause = cause or tonumber(string.sub(one.field, 9), 16)
      rest = how == 'o' and keep_output(flow, one, rest) or brief(rest)
      if string.find(one.state, '^w') then
        drops[#drops + 1] = one.field .. 'r'
      end
      put(one, how .. stamp .. rest)
      flow.left, touched[flow.id], changes = flow.left - 1, flow, changes + 1
      if how ~= 'o' then
        flow.failed, failures = flow.failed + 1, failures + 1
        if one.after == '' and flow.state == 'o' and not string.find(flow.flags, 'i') then
          flow.state, flow.why = 'f', string.format('%.0f', cause)
        end
      end
      for i = 1, #one.after, 8 do
        local child = whole(step_at(flow, string.sub(one.after, i, i + 7)))
        local waits = child and tonumber(string.match(child.state, '^w (%d+)$') or nil)
        if waits and how ~= 'o' and child.policy ~= 'i' then
          queue[#queue + 1] = {string.sub(one.after, i, i + 7), 'k', string.format('%.0f', cause),
            cause}
        elseif waits then
          put(child, string.format('w %.0f', math.max(0, waits - 1)))
          if waits <= 1 then
            ready[#ready + 1], changes = {flow, child}, changes + 1
          end
        end
      end
    end
  end
end

-- ahead reads the steps of some ends at once, and returns where in each of them its flow begins.
local function ahead(from, till)
  local starts, fields = {}, {}
  for at = from, till do
    local size, start = string.match(ends[at], '^(%d+):()')
    starts[at] = size and start + size
    local key = size and string.sub(ends[at], start + size, start + size + 15) or ''
    if #key == 16 and known[key] == nil then
      fields[#fields + 1] = key
    end
  end
  if #fields > 0 then
    read_at(fields)
  end
  return starts
end

local handled, starts = 0, nil
for at = first, #ends do
  if at > first and (changes >= 1000 or looks >= 4000 or bytes >= 1048576) then
    break
  end
  if handled % 100 == 0 then
    starts = ahead(at, math.min(at + 99, #ends))
  end
  handled, looks = handled + 1, looks + 1
  local text, stop = ends[at], starts[at]
  local from = stop and string.find(text, ':', 1, true) + 1
  local flow = stop and flow_named(string.sub(text, from, stop - 1),
    string.sub(text, stop, stop + 7))
  local one = flow and step_at(flow, string.sub(text, stop + 8, stop + 15))
  local letter = string.sub(text, stop + 16, stop + 16)
  if one and letter == 'o' and one.after == '' and string.find(one.state, '^s ') then
    -- Most ends are such. The same as finish.
    put(one, 'o' .. stamp .. keep_output(flow, one, string.sub(text, stop + 17)))
    flow.left, touched[flow.id], changes = flow.left - 1, flow, changes + 1
  elseif one then
    finish(flow, string.sub(one.field, 9), letter, string.sub(text, stop + 17))
  end
end

for _, one in ipairs(ready) do -- finish can add to them
  local flow, step = one[1], one[2]
  if flow.state == 'o' and step.state == 'w 0' then
    local row = redis.call('HGET', steps, step.field .. 'r')
    if row then
      posts[#posts + 1], posts[#posts + 2] = step.topic, row
      drops[#drops + 1] = step.field .. 'r'
      put(step, string.format('s %.0f', now))
      bytes = bytes + #row
    else
      finish(flow, string.sub(step.field, 9), 'g', 'its parcel is lost')
    end
  end
end

local ids, names, kept, told_ids = {}, {}, {}, {}
for id, flow in pairs(touched) do
  if flow.state == 'o' and flow.left <= 0 and not string.find(flow.flags, 'g') then
    flow.state = 'r'
  end
  if flow.state ~= flow.was and flow.state ~= 'o' then
    ids[#ids + 1], names[#names + 1] = id, flow.name
    told_ids[#told_ids + 1] = #id .. ':' .. id .. flow.name
    if flow.state == 'f' then
      count(stats, 'flows_failed', 1)
      posts[#posts + 1], posts[#posts + 2] = topic, '5' .. #id .. ':' .. id .. flow.name .. 'f'
    end
  end
  kept[#kept + 1], kept[#kept + 2] = id, flow_text(flow)
end

if #posts > 0 then
  post(parcels, plans, posts)
  nudge(channel, 'relay', topic, 0, '')
end
local words = {}
for field, value in pairs(puts) do
  words[#words + 1], words[#words + 2] = field, value
  if #words > 1000 then
    redis.call('HSET', steps, unpack(words))
    words = {}
  end
end
if #words > 0 then
  redis.call('HSET', steps, unpack(words))
end
if #kept > 0 then
  redis.call('HSET', flows, unpack(kept))
end
for i = 1, #drops, 1000 do
  redis.call('HDEL', steps, unpack(drops, i, math.min(i + 999, #drops)))
end
count(stats, 'flow_steps_failed', failures)
remember(receipt, number, handled .. ' ' .. table.concat(told_ids))
return {'ok', now, ids, handled, names}
