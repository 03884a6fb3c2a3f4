
-- inherited: running jobs that were put back have the records of their successors.
-- Gives: inherited

-- inherited ends what inherit has begun, when the jobs are in bucket. records is the key pool, and
-- entries the key moved. The tally is the second value of a row (at spots in given).
local function inherited(list, all, whens, records, entries, hash, given, spots)
  for n, one in ipairs(all) do
    local heir = list[n]
    if heir then
      local tally = string.match(given[spots[n] + 1], '^%d+ %d+ ') or '0 0 '
      redis.call('HSET', records, one, heir.record)
      redis.pcall('HSET', entries, one,
        string.format('%.0f ', whens[n]) .. heir.why .. ' ' .. tally .. '0') -- its expiry counts
      redis.call('HDEL', hash, one)
    end
  end
end
