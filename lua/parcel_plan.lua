-- parcel_plan: says for which targets there are parcels, or makes the plan by which those for one
-- target are delivered.
--
-- KEYS[1]  parcels  zset, jobs that ended runs have handed over, by target and number
-- KEYS[2]  plans    hash, target to the plan by which its parcels are delivered
-- ARGV[1]  target   topic; empty: list targets
-- ARGV[2]  tag      of a new plan, random letters and digits; of a list the last known target
-- ARGV[3]  passed   tag of a plan that the target has refused, because it knows a later one of the
--                   series; empty: none
-- ARGV[4]  floor    with passed: the number of the new plan is greater
--
-- A plan covers all parcels for its target up to a number, so that every relay sends the same:
-- at most 500, and at most 1 MiB beyond the first one. Until parcel_done has deleted them, every
-- call returns this plan. Its number is greater than that of every earlier plan of the topic, and
-- at least the time in ms. Safe to send twice.
-- Returns {'ok', now, targets}: at most 20, by length and then by name; or {'ok', now, parcels,
-- number, tag}: of each parcel what follows the number in its member. No parcels: there are none
-- for the target.
-- Cost: O(log N + parcels).
-- Uses: now parcels
local parcels, plans = KEYS[1], KEYS[2]
local target, tag, passed, floor = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if target == '' then
  local names, from = {}, tag == '' and '-' or '(' .. parcel_front(tag) .. 'g'
  for _ = 1, 20 do
    local one = redis.call('ZRANGEBYLEX', parcels, from, '+', 'LIMIT', 0, 1)[1]
    if not one then
      break
    end
    local size = tonumber(string.sub(one, 1, 2), 16)
    if size then
      names[#names + 1] = string.sub(one, 3, 2 + size)
      from = '(' .. string.sub(one, 1, 2 + size) .. 'g'
    else -- an operator has written it
      from = '(' .. one
    end
  end
  return {'ok', now, names}
end

local front = parcel_front(target)
local open = redis.call('HGET', plans, target) or ''
local number, known, last = string.match(open, '^(%d+) (%w+) (%x+)$')
if known == passed then
  known = nil
end

-- Few are read at a time, because one can have 1 MiB.
local list, bytes, full = {}, 0, false
local from, till = '[' .. front, '(' .. front .. (known and last or '') .. 'g'
while not full do
  local some = redis.call('ZRANGEBYLEX', parcels, from, till, 'LIMIT', 0, 32)
  for _, one in ipairs(some) do
    bytes = bytes + #one
    full = not known and #list > 0 and (bytes > 1048576 or #list == 500)
    if full then
      break
    end
    list[#list + 1] = one
  end
  if #some < 32 then
    break
  end
  from = '(' .. some[32]
end
redis.call('HDEL', plans, '') -- after a deletion, the script can write at maxmemory
if #list == 0 then
  redis.call('HDEL', plans, target)
  return {'ok', now, {}, '', ''}
end
if not known then
  local before = math.max(tonumber(redis.call('HGET', plans, '##') or 0) or 0,
    tonumber(floor) or 0)
  number, known = string.format('%.0f', math.max(before + 1, now)), tag
  last = string.sub(list[#list], #front + 1, #front + 14)
  redis.call('HSET', plans, '##', number, target, number .. ' ' .. known .. ' ' .. last)
end
for i, one in ipairs(list) do
  list[i] = string.sub(one, #front + 15)
end
return {'ok', now, list, number, known}
