
-- bound_for: says whether parcels are on the way to a topic.
-- Gives: bound_for
-- Expects: parcel_front

-- bound_for reports whether something is on the way to a target.
local function bound_for(parcels, target)
  local front = parcel_front(target)
  local some = redis.call('ZRANGEBYLEX', parcels, '[' .. front, '(' .. front .. 'g', 'LIMIT', 0, 1)
  return #some > 0
end
