-- replace: makes live jobs give way to new ones of the same ids. enqueue follows it in the same call and stores those.
--
-- KEYS[1]   pool      hash, job id to record
-- KEYS[2]   bucket    zset, job id scored by due time (Unix ms)
-- KEYS[3]   ready     list of job ids, next one at the head
-- KEYS[6]   receipt   string, the last call of the lane and its reply
-- KEYS[7]   leases    zset, job id scored by the end of its lease
-- KEYS[8]   dead      zset, job id scored by the time of burial
-- KEYS[9]   attempts  hash, job id to finished attempts
-- KEYS[10]  errors    hash, job id to its last errors
-- KEYS[11]  moved     hash, job id to its present due time, if that is not the record's
-- ARGV[1]   number    number of this call in its lane
-- ARGV[3]   channel   the control channel
-- ARGV[4]   topic     the topic's name, for the control channel
-- ARGV[5..] jobs      for each job: id, head and tail of the record, due
--
-- The other keys and words are those of enqueue, and so is the reply. The old ids may stay behind in ready: they then count for the
-- new jobs, or are dropped by take. Cost: O(jobs × log N).
do
  local pool, bucket, ready, receipt, leases, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[6], KEYS[7], KEYS[8]
  local attempts, errors, moved = KEYS[9], KEYS[10], KEYS[11]
  local number, channel, topic = ARGV[1], ARGV[3], ARGV[4]
  local jobs, first, width = ARGV, 5, 4

  if not replay(receipt, number) then
    local old = {}
    for at = first, #jobs, width do
      local id, head = jobs[at], jobs[at + 1]
      local present = redis.call('HGET', pool, id)
      if present and string.sub(present, 1, 8) ~= string.sub(head, 1, 8) then
        old[#old + 1] = id
        local fence = redis.call('ZSCORE', leases, id)
        if fence then
          nudge(channel, 'replace', topic, fence, id)
        end
      end
    end
    if #old > 0 then
      -- A key of a wrong type must show before the old jobs are gone, not after.
      redis.call('LLEN', ready)
      redis.call('ZCARD', bucket)
      redis.call('ZCARD', dead)
      release(leases, old)
      redis.call('ZREM', bucket, unpack(old))
      redis.call('ZREM', dead, unpack(old))
      redis.pcall('HDEL', attempts, unpack(old))
      redis.pcall('HDEL', errors, unpack(old))
      redis.pcall('HDEL', moved, unpack(old))
      redis.call('HDEL', pool, unpack(old))
    end
  end
end

