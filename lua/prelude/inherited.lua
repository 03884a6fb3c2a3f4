
-- inherited: running jobs that were put back have the records of their successors.
-- Gives: inherited

-- inherited ends what inherit has begun, when the jobs are in bucket. at is the index of the tally
-- in a row.
local function inherited(heirs, ids, dues, pool, moved, next, jobs, where, at)
  for i, id in ipairs(ids) do
    local heir = heirs[i]
    if heir then
      local tally = string.match(jobs[where[i] + at - 1], '^%d+ %d+ ') or '0 0 '
      redis.call('HSET', pool, id, heir.record)
      redis.pcall('HSET', moved, id,
        string.format('%.0f ', dues[i]) .. heir.why .. ' ' .. tally .. '0') -- its own expiry counts
      redis.call('HDEL', next, id)
    end
  end
end
