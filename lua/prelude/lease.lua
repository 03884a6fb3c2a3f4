
-- Gives: anchor release

-- anchor is a member of leases as long as leases has others. Redis keeps a small zset in a compact
-- form, and every access scans the whole of it. A long member makes Redis choose the other form,
-- which is four times as fast with 64 leases. The anchor is longer than an ID can be, and its score
-- is +inf.
local function anchor()
  local line = string.rep('-', 41) -- which would take three times as long for all 1,025
  line = line .. line .. line .. line .. line
  return line .. line .. line .. line .. line
end

-- release ends leases, and removes the anchor after the last one.
local function release(leases, ids)
  redis.call('ZREM', leases, unpack(ids))
  if redis.call('ZCARD', leases) == 1 and redis.call('ZSCORE', leases, anchor()) then
    redis.call('DEL', leases)
  end
end
