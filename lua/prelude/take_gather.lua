
-- take_gather: jobs of all keys that are gathered for a batch.
-- Gives: gather
-- Expects: now limit enough within batch name ready handoff lane meta idle
--
-- Jobs are gathered from the take that finds too few of them on. The field gather of meta has the
-- end of that. The server waits in idle meanwhile, because each job that becomes ready can be the
-- last one that is missing. Jobs that do not fill another batch, and are too few for one, stay.

-- gather returns how many jobs the take may lease, and the reply if it leases none because they are
-- gathered. ending is the end of that, or 0.
local function gather(ending)
  local jobs = redis.call('LLEN', ready) + redis.call('LLEN', handoff)
  if jobs > 0 then -- without the wake-ups
    jobs = jobs - #redis.call('LPOS', ready, '', 'COUNT', 0, 'MAXLEN', 1000)
      - #redis.call('LPOS', handoff, '', 'COUNT', 0, 'MAXLEN', 1000)
  end
  jobs = jobs + redis.call('ZCARD', lane)
  local over = ending > 0 and ending <= now
  if jobs > 0 and jobs < enough then
    if ending == 0 or ending > now + within then
      ending = now + within
      redis.call('HDEL', meta, 'gather') -- after a deletion, the script can write at maxmemory
      redis.call('HSET', meta, 'gather', string.format('%.0f', ending))
    end
    if ending > now then
      local put = name ~= '' and redis.pcall('ZADD', idle, now, name)
      return 0, {'gather', now, ending - now, type(put) == 'number' and 1 or 0}
    end
  end
  if ending > 0 then
    redis.call('HDEL', meta, 'gather')
  end
  local rest = jobs % batch
  if not over and rest > 0 and rest < enough then
    return math.min(limit, jobs - rest)
  end
  return limit
end
