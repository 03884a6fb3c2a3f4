-- hand_over: stores the jobs that runs hand over (parcels), in the step that ends their own jobs.
-- Gives: hands_over
-- Expects: now time parcel_front whole_number

-- hands_over returns a function that stores parcels. In given, skip behind the first value of a
-- job, are a netstring of the target and one of the job for each parcel. Their numbers grow, so
-- that a plan over all parcels up to one is not changed by later ones. The first one of a topic,
-- and the next one after a loss of the key or damage to it, is the time in µs: no topic has handed
-- over as many.
local function hands_over(parcels, plans, skip)
  -- A wrong type must cause an error before the first write. Nothing that is damaged may.
  redis.call('ZCARD', parcels)
  local last = whole_number(redis.call('HGET', plans, '#')) or time[1] * 1000000 + time[2]
  return function(given, where, ids)
    local list, n = {}, 0
    for i = 1, #ids do
      local text, at = given[where[i] + skip], 1
      while at <= #text do
        local _, ends, size = string.find(text, '^(%d+):', at)
        n, at = n + 1, ends + 1 + size
        list[n] = string.sub(text, ends + 1, ends + size)
      end
    end
    local words, stamp = {}, string.format('%013.0f', now)
    if n > 0 then
      redis.call('HSET', plans, '#', string.format('%.0f', last + n / 2))
    end
    for i = 1, n, 2 do
      words[#words + 1] = '0'
      words[#words + 1] = parcel_front(list[i]) .. string.format('%014x', last + (i + 1) / 2)
        .. stamp .. list[i + 1]
      if #words == 1000 or i + 1 == n then
        redis.call('ZADD', parcels, unpack(words))
        words = {}
      end
    end
  end
end
