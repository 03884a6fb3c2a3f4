-- flow_sweep: cancels what is left of a flow, some steps a call, or deletes the flow.
--
-- KEYS[1]  flows    hash, ID of a last step to how far its flow has come
-- KEYS[2]  steps    hash, the steps of flows
-- KEYS[3]  parcels  zset, what is on the way to other topics, by target and number
-- KEYS[4]  plans    hash, target to the plan by which its parcels are delivered
-- ARGV[1]  channel  the control channel
-- ARGV[2]  topic    the topic's name, for the control channel
-- ARGV[3]  last     ID of the last step
-- ARGV[4]  name     of the flow
-- ARGV[5]  mode     f: the flow has failed. d: its last step is dead. e: the flow is deleted
-- ARGV[6]  from     0, or the next of the call before
--
-- Started steps are cancelled: the parcels for that are stored. Those that wait are skipped. From
-- the first call on, the flow starts no steps. With e, the last steps are deleted first, whatever
-- from is, and the flow when none are left. With the other modes, steps notes how far the sweep has
-- come. So another sweep can go on where one has ended.
-- Safe to send twice.
-- Returns {'ok', now, next}: next is the from to go on with, -1 at the end.
-- Cost: O(log N + 250 steps).
-- Uses: now control parcels post flow
local flows, steps, parcels, plans = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, topic, last, name = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local mode, from = ARGV[5], tonumber(ARGV[6])
local most = 250

local function field_of(n)
  return name .. string.format('%08x', n)
end

local function name_of(step)
  return name .. '=' .. #step.topic .. ':' .. step.topic .. step.id
end

-- A wrong type must cause an error before the first write.
redis.call('ZCARD', parcels)
redis.call('HGET', plans, '#')
redis.call('HDEL', steps, '') -- after a deletion, the script can write at maxmemory
local flow = read_flow(redis.call('HGET', flows, last))
if flow and flow.name ~= name then
  flow = nil
end
if not flow and mode ~= 'e' then
  return {'ok', now, -1}
end

-- The steps of this call are those from first on, before stop. All before the noted one have ended.
local note = name .. '#'
local first, stop = from, flow and flow.total or 0
if mode ~= 'e' then
  first = math.max(first, tonumber(redis.call('HGET', steps, note) or nil) or 0)
end
if mode == 'e' then
  local low, high = 0, 16777216 -- steps that are left are the first ones
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('HEXISTS', steps, field_of(middle)) == 1 then
      low = middle + 1
    else
      high = middle
    end
  end
  first, stop = math.max(0, low - most), low
end
stop = math.min(stop, first + most)

local fields, puts, drops, cancels = {}, {}, {}, {}
for n = first, stop - 1 do
  fields[#fields + 1], fields[#fields + 2] = field_of(n), field_of(n) .. 's'
end
local one = #fields > 0 and read_step(redis.call('HGET', steps, fields[1]) or '')
-- Whether the steps have fields with their names, as those of a group have.
local named = one and redis.call('HEXISTS', steps, name_of(one)) == 1
-- All steps of most flows have ended when these are deleted. Then none need be read.
local all_over = mode == 'e' and one and not named and flow and flow.left <= 0
local found = #fields > 0 and not all_over and redis.call('HMGET', steps, unpack(fields)) or {}
for i = 1, all_over and #fields or 0, 2 do
  drops[#drops + 1], drops[#drops + 2] = fields[i], fields[i + 1]
  if flow.bytes > 0 then
    drops[#drops + 1] = fields[i] .. 'o'
  end
end
for i = 1, all_over and 0 or #fields, 2 do
  local field, state = fields[i], found[i + 1] or ''
  local letter = string.sub(state, 1, 2)
  local started, waits = letter == 's ', letter == 'w '
  local step = (started or named or not one) and read_step(found[i] or '')
  if started and step then
    cancels[#cancels + 1] = step.topic
    cancels[#cancels + 1] = '4' .. #step.id .. ':' .. step.id .. field
  end
  if mode == 'e' then
    drops[#drops + 1], drops[#drops + 2] = field, fields[i + 1]
    if letter == 'o ' or letter == '' then
      drops[#drops + 1] = field .. 'o'
    end
    if waits or letter == '' then
      drops[#drops + 1] = field .. 'r'
    end
    if step and (named or not one) then
      drops[#drops + 1] = name_of(step)
    end
  elseif started or waits then
    puts[#puts + 1] = field .. 's'
    puts[#puts + 1] = string.format(started and 'c %.0f ' or 'k %.0f ', now)
    drops[#drops + 1] = field .. 'r'
    flow.left, flow.failed = flow.left - 1, flow.failed + 1
  end
end

if #cancels > 0 then
  post(parcels, plans, cancels)
  nudge(channel, 'relay', topic, 0, '')
end
local over = mode == 'e' and first == 0 or mode ~= 'e' and stop >= flow.total
if over then
  drops[#drops + 1] = note
elseif mode ~= 'e' then
  puts[#puts + 1], puts[#puts + 2] = note, string.format('%.0f', stop)
end
if #puts > 0 then
  redis.call('HSET', steps, unpack(puts))
end
if flow and mode == 'e' and over then
  redis.call('HDEL', flows, last)
elseif flow then
  flow.state = mode == 'f' and flow.state or 'd'
  redis.call('HSET', flows, last, flow_text(flow))
end
if #drops > 0 then
  redis.call('HDEL', steps, unpack(drops))
end
return {'ok', now, over and -1 or stop}
