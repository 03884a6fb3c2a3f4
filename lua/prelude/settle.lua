-- owns tells whether a lease that ends at score (a string, or false when there is none) is the one that fence names.
-- A fence is one lease end, or several with spaces between them while extensions are not known to have arrived. Ends are compared
-- as numbers: releases of Redis differ in how many digits they write.
local function owns(score, fence)
  if not score or score == fence then
    return score ~= false
  end
  for lease_end in string.gmatch(fence, '%S+') do
    if tonumber(lease_end) == tonumber(score) then
      return true
    end
  end
  return false
end

-- together looks up which leases end at fence, for a group of so many jobs: as a set of ids. It gives nil where the ids are better
-- asked for one by one: few jobs, several fences, or many other leases with that end. A range writes no scores, which saves Redis 7.0
-- a fifth of an ack.
local function together(leases, fence, jobs)
  if jobs < 8 or not string.find(fence, '^%d+%.?%d*$') or redis.call('ZCOUNT', leases, fence, fence) > 2 * jobs then
    return nil
  end
  local set = {}
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', leases, fence, fence, 'LIMIT', 0, 2 * jobs)) do
    set[id] = true
  end
  return set
end

-- rows reads what the scripts that settle jobs are given: groups of fence, number of values a job has, number of jobs, and then for
-- each job its id and its values. It returns the ids whose lease still is the one the fence names, where in given the values of
-- each of them begin (nil without values), and a letter for every job: o for ours, l for lost, g for lost because the job is
-- gone; no letters when all are ours.
local function rows(leases, pool, given, first)
  local ids, where, n = {}, {}, 0
  local single, fences, place = {}, {}, {}
  local lost, losses = {}, 0
  local at = first
  while at <= #given do
    local fence, width, jobs = given[at], tonumber(given[at + 1]), tonumber(given[at + 2])
    local set = together(leases, fence, jobs)
    at = at + 3
    for _ = 1, jobs do
      local id = given[at]
      n = n + 1
      ids[n] = id
      if width > 0 then
        where[n] = at + 1
      end
      if not set then
        local m = #single + 1
        single[m], fences[m], place[m] = id, fence, n
      elseif not set[id] then
        lost[n], losses = true, losses + 1
      end
      at = at + 1 + width
    end
  end
  if #single > 0 then
    local scores = redis.call('ZMSCORE', leases, unpack(single))
    for i, to in ipairs(place) do
      if not owns(scores[i], fences[i]) then
        lost[to], losses = true, losses + 1
      end
    end
  end
  if losses == 0 then
    return ids, where, ''
  end
  local letters, kept = {}, 0
  for i = 1, n do
    if lost[i] then
      letters[i] = redis.call('HEXISTS', pool, ids[i]) == 1 and 'l' or 'g'
    else
      letters[i], kept = 'o', kept + 1
      ids[kept], where[kept] = ids[i], where[i]
    end
  end
  for i = n, kept + 1, -1 do
    ids[i], where[i] = nil, nil
  end
  return ids, where, table.concat(letters)
end
