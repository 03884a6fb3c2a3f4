
-- followed: which running jobs have successors.
-- Gives: followed

-- followed returns true at the index of each job that has a successor, and whether there is one.
local function followed(hash, all)
  local has, some = {}, false
  for n, one in ipairs(all) do
    if redis.call('HEXISTS', hash, one) == 1 then
      has[n], some = true, true
    end
  end
  return has, some
end
