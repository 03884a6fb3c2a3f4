
-- post: stores parcels (see Parcels in docs/protocol.md).
-- Gives: post
-- Expects: now time parcel_front whole_number

-- post stores parcels in the key to, and the number of the last one in the key of_plans. list has
-- the target and the text of each: the format, and what follows it. It returns whether all are
-- stored. Their numbers grow, as those of hands_over do. With pcall: it never decides the fate of a
-- job.
local function post(to, of_plans, list)
  local known = redis.pcall('HGET', of_plans, '#')
  local last = whole_number(type(known) == 'string' and known) or time[1] * 1000000 + time[2]
  local next_last = string.format('%.0f', last + #list / 2)
  local fine = type(redis.pcall('HSET', of_plans, '#', next_last)) ~= 'table'
  local members, stamp = {}, string.format('%013.0f', now)
  for i = 1, #list, 2 do
    members[#members + 1] = '0'
    members[#members + 1] = parcel_front(list[i]) .. string.format('%014x', last + (i + 1) / 2)
      .. stamp .. list[i + 1]
    if #members == 1000 or i + 1 == #list then
      fine = fine and type(redis.pcall('ZADD', to, unpack(members))) ~= 'table'
      members = {}
    end
  end
  return fine
end
