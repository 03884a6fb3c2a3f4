
-- heirs: the successors of jobs that a call settles.
-- Gives: heirs_of
-- Expects: successor_of

-- heirs_of reads successors from next, each at the index of its job: when it is due, why, and its
-- record. If they have more than 1 MiB together, some are left out, but not the first. It returns
-- true at the index of each that is left out, and whether there is one.
local function heirs_of(hash, all)
  local list, left, some, bytes = {}, {}, false, 0
  for n, one in ipairs(all) do
    local size = redis.call('HSTRLEN', hash, one)
    if size > 0 and bytes > 0 and bytes + size > 1048576 then
      left[n], some = true, true
    elseif size > 0 then
      local due, why, record = successor_of(redis.call('HGET', hash, one))
      list[n], bytes = due and {due = due, why = why, record = record}, bytes + size
    end
  end
  return list, left, some
end
