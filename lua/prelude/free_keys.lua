
-- Gives: free_keys
-- Expects: lane_range offer

-- free_keys takes keys off held or parked. Those that have jobs in lane (lanes) get turns in turn
-- (round) first, so none is lost if one of them is of a wrong type. Take parks a key when its turn
-- has come, so a key that was parked (back) is the next one. It returns the number of these jobs.
local function free_keys(zset, round, lanes, keys, back)
  redis.call('ZREM', lanes, '') -- after a deletion, the script can write at maxmemory
  local jobs, again = 0, {}
  for _, key in ipairs(keys) do
    local n = redis.call('ZLEXCOUNT', lanes, lane_range(key))
    if n > 0 then
      jobs, again[#again + 1] = jobs + n, key
    end
  end
  if jobs > 0 then
    offer(round, again, back)
  end
  redis.call('ZREM', zset, unpack(keys))
  return jobs
end
