-- post: stores parcels (see Parcels in docs/protocol.md).
-- Gives: post
-- Expects: now time parcel_front whole_number

-- bundles puts parcels for the same target together, in their order. list has the target and the
-- text of each: the format, and what follows it. The result has the same form. A parcel of format 6
-- has others in it: at most 100, with less than 32 KiB but for the last one. One of list stays.
local function bundles(list)
  local result, open = {}, {} -- open: by target
  local function close(target, parts)
    if parts.n == 0 then
      return
    end
    result[#result + 1] = target
    result[#result + 1] = parts.n == 1 and parts[3]
      or '6' .. string.format('%03x', parts.n) .. table.concat(parts)
  end
  local order = {}
  for i = 1, #list, 2 do
    local target, text = list[i], list[i + 1]
    local parts = open[target]
    if not parts then
      parts = {n = 0, bytes = 0}
      open[target], order[#order + 1] = parts, target
    end
    local bundle = string.byte(text, 1) == 54 -- the format 6
    if not bundle then
      local at = 3 * parts.n
      parts[at + 1], parts[at + 2], parts[at + 3] = #text, ':', text
      parts.n, parts.bytes = parts.n + 1, parts.bytes + #text
    end
    if bundle or parts.n == 100 or parts.bytes >= 32768 then
      close(target, parts)
      open[target] = {n = 0, bytes = 0}
    end
    if bundle then
      result[#result + 1], result[#result + 2] = target, text
    end
  end
  for _, target in ipairs(order) do
    close(target, open[target])
  end
  return result
end

-- post stores parcels in the key to, and the number of the last one in the key of_plans. list is
-- that of bundles. It returns whether all are stored. Their numbers grow, as those of hands_over
-- do. With pcall: it never decides the fate of a job.
local function post(to, of_plans, list)
  list = bundles(list)
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
