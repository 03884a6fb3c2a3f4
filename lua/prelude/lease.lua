-- anchor is a member of leases while that has others. Redis keeps a small zset in a compact form in which every access walks the
-- whole of it; a long member makes it choose the other form, which is four times as fast with 64 leases. It is longer than an
-- id may be, and its score is +inf.
local function anchor()
  return string.rep('-', 1025)
end

-- release ends leases, and takes the anchor away after the last one.
local function release(leases, ids)
  redis.call('ZREM', leases, unpack(ids))
  if redis.call('ZCARD', leases) == 1 and redis.call('ZSCORE', leases, anchor()) then
    redis.call('DEL', leases)
  end
end

