-- parcel_done: ends a plan whose parcels are delivered, and deletes them.
--
-- KEYS[1]    parcels      zset, jobs that ended runs have handed over, by target and number
-- KEYS[2]    plans        hash, target to the plan by which its parcels are delivered
-- KEYS[3]    undelivered  list, the last 100 parcels that were not delivered
-- KEYS[4]    stats        hash, counter to number
-- ARGV[1]    target       topic
-- ARGV[2]    number       of the plan
-- ARGV[3]    tag          of the plan
-- ARGV[4..]  refused      JSON about each parcel that the target has refused
--
-- Does nothing if that plan is over. So it is safe to send twice, and several relays can deliver a
-- plan.
-- Returns {'ok', now, done, more}: how many parcels were deleted, and 1 if there are others for the
-- target.
-- Cost: O(parcels × log N).
-- Uses: now stats parcels bound_for
local parcels, plans, undelivered, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local target, number, tag = ARGV[1], ARGV[2], ARGV[3]
local refused, first = ARGV, 4

local front = parcel_front(target)
local own, known, last = open_plan(redis.call('HGET', plans, target))
local done = 0
if own == number and known == tag then
  local list, from = {}, '[' .. front
  for _ = 1, 4 do -- there can be damaged ones, which do not belong to the plan
    local some = redis.call('ZRANGEBYLEX', parcels, from, '(' .. front .. last .. 'g',
      'LIMIT', 0, 500)
    for _, one in ipairs(some) do
      if #list < 500 and parcel_of(one) then
        list[#list + 1] = one
      end
    end
    if #some < 500 or #list == 500 then
      break
    end
    from = '(' .. some[500]
  end
  if #list > 0 then
    done = redis.call('ZREM', parcels, unpack(list))
  end
  redis.call('HDEL', plans, target)
  for at = first, #refused do
    redis.pcall('LPUSH', undelivered, refused[at])
    redis.pcall('LTRIM', undelivered, 0, 99)
  end
  count(stats, 'undelivered', #refused - first + 1)
end
return {'ok', now, done, bound_for(parcels, target) and 1 or 0}
