-- chronicle: adds what a server has counted to the history of a topic.
--
-- KEYS[1]  minutes  hash, minute modulo 360 to the numbers of that minute
-- KEYS[2]  hours    hash, hour modulo 720 to the numbers of that hour
-- KEYS[3]  receipt  string, the last call of the series and its reply
-- ARGV[1]  number   number of this call in its series
-- ARGV[2]  sums     name and number of each series that is not 0, with spaces between them
--
-- Minutes and hours are those of Redis's clock at this call, counted since 1970. A field holds the
-- minute or the hour, then name and number of each series. The field of an older minute or hour is
-- replaced. Each call makes minutes expire in 7 hours and hours in 31 days. Safe to send twice: a
-- repeated call adds nothing.
-- Returns {'ok', now}.
-- Cost: O(series), at most 64 of them in a field.
-- Uses: now receipt
local minutes, hours, receipt = KEYS[1], KEYS[2], KEYS[3]
local number, sums = ARGV[1], ARGV[2]

if replay(receipt, number) then
  return {'ok', now}
end

-- sum returns the text of a field after the addition. A field that is damaged begins anew.
local function sum(text, at)
  local names, total = {}, {}
  for _, list in ipairs({string.match(text or '', '^' .. at .. '( .*)$') or '', ' ' .. sums}) do
    for name, n in string.gmatch(list, ' ([%l%d_]+) (%d+)') do
      if not total[name] and #names < 64 then
        names[#names + 1] = name
      end
      total[name] = math.min((total[name] or 0) + tonumber(n), 9007199254740991)
    end
  end
  local parts = {at}
  for i, name in ipairs(names) do
    parts[i + 1] = string.format('%s %.0f', name, total[name])
  end
  return table.concat(parts, ' ')
end

local minute, hour = math.floor(now / 60000), math.floor(now / 3600000)
local minute_field, hour_field = minute % 360, hour % 720
-- Both are read before the first write, so that a key of a wrong type leaves nothing half done.
local minute_text = redis.call('HGET', minutes, minute_field)
local hour_text = redis.call('HGET', hours, hour_field)
redis.call('HSET', minutes, minute_field, sum(minute_text, minute))
redis.call('PEXPIRE', minutes, 25200000) -- 7 hours
redis.call('HSET', hours, hour_field, sum(hour_text, hour))
redis.call('PEXPIRE', hours, 2678400000) -- 31 days
remember(receipt, number, '')
return {'ok', now}
