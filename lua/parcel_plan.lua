-- parcel_plan: says for which targets there are parcels, or makes the plan by which those for one
-- target are delivered.
--
-- KEYS[1]  parcels      zset, jobs that ended runs have handed over, by target and number
-- KEYS[2]  plans        hash, target to the plan by which its parcels are delivered
-- KEYS[3]  undelivered  list, the last 100 parcels that were not delivered
-- KEYS[4]  stats        hash, counter to number
-- ARGV[1]  target       topic; empty: list targets
-- ARGV[2]  tag          of a new plan, random letters and digits; empty, of a list: no plan
-- ARGV[3]  passed       tag of a plan that the target has refused, because it knows a later one of
--                       the series; empty: none. Of a list: the last known target
-- ARGV[4]  floor        with passed: the number of the new plan is greater
--
-- A plan covers all parcels for its target up to a number, so that every relay sends the same: at
-- most 500, those in bundles counted, and at most 1 MiB beyond the first one. Until parcel_done has
-- deleted them, every call returns this plan. Its number is greater than that of every earlier plan
-- of the topic, and at least the time in ms. Damaged parcels are moved to undelivered: they do not
-- belong to a plan.
-- Safe to send twice.
-- Returns {'ok', now, targets}: at most 20, by length and then by name; or {'ok', now, parcels,
-- number, tag}: of each parcel what follows the number in its member. No parcels: there are none
-- for the target, or it has 500 damaged ones, and the next call goes on. A list from the start that
-- has one target also returns its plan: {'ok', now, targets, parcels, number, tag}.
-- Cost: O(log N + parcels).
-- Uses: now stats parcels
local parcels, plans, undelivered, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local target, tag, passed, floor = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- set_aside moves a damaged parcel to undelivered.
-- parts_of returns how many parcels are in one, whose target has a front of that length.
local function parts_of(one, front)
  local parts = string.byte(one, front + 28) == 54 -- the format 6
    and tonumber(string.match(one, '^[%da-f][%da-f][%da-f]', front + 29) or nil, 16)
  return parts or 1
end

local damaged, damaged_most = 0, 500
local function set_aside(one)
  damaged = damaged + 1
  redis.call('ZREM', parcels, one)
  local start = string.gsub(string.sub(one, 1, 200), '[^ -~]', '?')
  redis.pcall('LPUSH', undelivered, cjson.encode({at = now, from = '', topic = '', id = '',
    reason = 'the parcel is damaged: ' .. start}))
  redis.pcall('LTRIM', undelivered, 0, 99)
end

-- targets_of lists targets.
local function targets_of(after)
  local names, from = {}, after == '' and '-' or '(' .. parcel_front(after) .. 'g'
  while #names < 20 and damaged < damaged_most do
    local one = redis.call('ZRANGEBYLEX', parcels, from, '+', 'LIMIT', 0, 1)[1]
    if not one then
      break
    end
    local name = parcel_of(one)
    if name then
      names[#names + 1] = name
      from = '(' .. parcel_front(name) .. 'g'
    else
      set_aside(one)
    end
  end
  return names
end

-- plan_of returns the parcels of the plan for a target, and its number and tag.
local function plan_of(front)
  local number, known, last = open_plan(redis.call('HGET', plans, target))
  if known == passed then
    known = nil
  end

  -- Few are read at a time, because one can have 1 MiB.
  local list, bytes, total, full = {}, 0, 0, false
  local from, till = '[' .. front, '(' .. front .. (known and last or '') .. 'g'
  while not full do
    local some = redis.call('ZRANGEBYLEX', parcels, from, till, 'LIMIT', 0, 32)
    for _, one in ipairs(some) do
      if parcel_of(one) then
        bytes, total = bytes + #one, total + parts_of(one, #front)
        full = not known and #list > 0 and (bytes > 1048576 or total > 500)
        if full then
          break
        end
        list[#list + 1] = one
      elseif damaged == damaged_most then
        return {}, '', ''
      else
        set_aside(one)
      end
    end
    if #some < 32 then
      break
    end
    from = '(' .. some[32]
  end
  redis.call('HDEL', plans, '') -- after a deletion, the script can write at maxmemory
  if #list == 0 then
    redis.call('HDEL', plans, target)
    return {}, '', ''
  end
  if not known then
    local before = math.max(whole_number(redis.call('HGET', plans, '##')) or 0,
      tonumber(floor) or 0)
    number, known = string.format('%.0f', math.max(before + 1, now)), tag
    last = string.sub(list[#list], #front + 1, #front + 14)
    redis.call('HSET', plans, '##', number, target, number .. ' ' .. known .. ' ' .. last)
  end
  for i, one in ipairs(list) do
    list[i] = string.sub(one, #front + 15)
  end
  return list, number, known
end

local reply = {'ok', now}
if target == '' then
  local names = targets_of(passed)
  reply[3] = names
  if passed == '' and tag ~= '' and #names == 1 then
    target = names[1]
  end
end
if target ~= '' then
  local list, number, known = plan_of(parcel_front(target))
  for _, value in ipairs({list, number, known}) do
    reply[#reply + 1] = value
  end
end
count(stats, 'undelivered', damaged)
return reply
