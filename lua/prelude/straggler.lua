-- straggler: handlers that may still run although their jobs have been cancelled or replaced.
-- Gives: stragglers_of straggle
-- Expects: now lane_of key_of holder_of

-- stragglers_of returns the entries in holders of the handler of a job whose lease ends at a time:
-- the one that counts for the limits of the topic, and the one that counts for those of the key.
-- They count until that time.
local function stragglers_of(key, ending, id)
  local till = '1' .. string.format('%017.3f', tonumber(ending))
  return lane_of('') .. till .. lane_of(key) .. id, lane_of(key) .. till .. id
end

-- straggle makes the handlers of running jobs whose leases are about to be released stragglers, if
-- the topic has limits. With pcall: they never decide the fate of a job.
local function straggle(holders, sizes, ids, ends, places)
  if redis.pcall('HEXISTS', sizes, 'limits') ~= 1 then
    return
  end
  local entries, over = {}, {}
  for i, id in ipairs(ids) do
    if tonumber(ends[i]) > now then
      local key = places[i] and key_of(places[i]) or ''
      local of_topic, of_key = stragglers_of(key, ends[i], id)
      entries[#entries + 1], entries[#entries + 2] = 0, of_topic
      if key ~= '' then
        entries[#entries + 1], entries[#entries + 2] = 0, of_key
        over[#over + 1] = holder_of(key, id)
      end
    end
  end
  if #entries > 0 then
    redis.pcall('ZADD', holders, unpack(entries))
  end
  if #over > 0 then
    redis.pcall('ZREM', holders, unpack(over))
  end
end
