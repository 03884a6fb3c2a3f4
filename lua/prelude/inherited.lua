
-- inherited: running jobs that were put back have the records of their successors.
-- Gives: inherited

-- inherited ends what inherit has begun, when the jobs are in bucket. records is the key pool, and
-- entries the key moved. The tally is the second value of a row (at spots in given). Those who wait
-- for the jobs wait for the successors, if there are any (told_of: see endings).
local function inherited(list, all, whens, records, entries, hash, given, spots, told_of)
  for n, one in ipairs(all) do
    local heir = list[n]
    if heir then
      local tally = string.match(given[spots[n] + 1], '^%d+ %d+ ') or '0 0 '
      if told_of then
        told_of.jobs({one}, function() return 'f', string.sub(heir.record, 1, 8) end)
      end
      redis.call('HSET', records, one, heir.record)
      redis.pcall('HSET', entries, one,
        string.format('%.0f ', whens[n]) .. heir.why .. ' ' .. tally .. '0') -- its expiry counts
      redis.call('HDEL', hash, one)
    end
  end
  if told_of then
    told_of.close()
  end
end
