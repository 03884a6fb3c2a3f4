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

-- rows reads what the scripts that settle jobs are given: groups of fence, number of values a job has, number of jobs, and then for
-- each job its id and its values. It returns the ids whose lease still is the one the fence names, where in given the values of
-- each of them begin (false without values), and a letter for every job: o for ours, l for lost, g for lost because the job is
-- gone; no letters when all are ours.
local function rows(leases, pool, given, first)
  local ids, fences, where, n = {}, {}, {}, 0
  local at = first
  while at <= #given do
    local fence, width, jobs = given[at], tonumber(given[at + 1]), tonumber(given[at + 2])
    at = at + 3
    for _ = 1, jobs do
      n = n + 1
      ids[n], fences[n], where[n] = given[at], fence, width > 0 and at + 1
      at = at + 1 + width
    end
  end
  local scores = redis.call('ZMSCORE', leases, unpack(ids))
  local letters, lost = {}, 0
  for i = 1, n do
    if owns(scores[i], fences[i]) then
      letters[i] = 'o'
      ids[i - lost], where[i - lost] = ids[i], where[i]
    else
      letters[i] = redis.call('HEXISTS', pool, ids[i]) == 1 and 'l' or 'g'
      lost = lost + 1
    end
  end
  for i = n, n - lost + 1, -1 do
    ids[i], where[i] = nil, nil
  end
  return ids, where, lost > 0 and table.concat(letters) or ''
end

