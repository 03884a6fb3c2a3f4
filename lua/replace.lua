-- replace: makes live jobs give way to new ones of the same ids. enqueue follows it in the same call and stores those.
--
-- KEYS[1]   pool      hash, job id to record
-- KEYS[2]   bucket    zset, job id scored by due time (Unix ms)
-- KEYS[3]   ready     list of job ids, next one at the head
-- KEYS[5]   sizes     hash, the size of the largest record
-- KEYS[6]   receipt   string, the last call of the series and its reply
-- KEYS[7]   leases    zset, job id scored by the end of its lease
-- KEYS[8]   dead      zset, job id scored by the time of burial
-- KEYS[9]   attempts  hash, job id to finished attempts
-- KEYS[10]  errors    hash, job id to its last errors
-- KEYS[11]  moved     hash, job id to its present due time, if that is not the record's
-- KEYS[12]  handoff   list of job ids between a server's wait and its take
-- ARGV[1]   number    number of this call in its series
-- ARGV[3]   channel   the control channel
-- ARGV[4]   topic     the topic's name, for the control channel
-- ARGV[5..] jobs      for each job: id, head and tail of the record, and when it is due, after the letter that says what it replaces
--
-- The other keys and words are those of enqueue, and so is the reply. A new job that is due now keeps the place in ready of an old one
-- that had one. Of old jobs that were ready and give way to one that is due later, twenty a call leave ready like those that are
-- cancelled; other old ids may stay behind there. Cost: O(jobs × log N).
-- Then: enqueue
-- Uses: now receipt stats sizes terms lease unready control
do
  local pool, bucket, ready, sizes, receipt, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[5], KEYS[6], KEYS[7]
  local dead, attempts, errors, moved, handoff = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
  local number, channel, topic = ARGV[1], ARGV[3], ARGV[4]
  local jobs, first, width = ARGV, 5, 4

  if not replay(receipt, number) then
    local ids, words = {}, {}
    for at = first, #jobs, width do
      ids[#ids + 1], words[#words + 1] = jobs[at], jobs[at + 3]
    end
    local live, placed = namesakes(pool, sizes, ids, jobs, first, width), {}
    replaced.live, replaced.placed = live, placed
    local taken, where = {}, {}
    for i, id in ipairs(ids) do
      local head = jobs[first + 1 + (i - 1) * width]
      if live[i] and string.match(words[i], '^%a') and string.sub(live[i], 1, 8) ~= string.sub(head, 1, 8) then
        taken[#taken + 1], where[#where + 1] = id, i
      end
    end
    if #taken > 0 then
      -- A key of a wrong type must show before the old jobs are gone, not after.
      local listed = redis.call('LLEN', ready)
      listed = listed > 0 and listed or redis.call('LLEN', handoff)
      local delayed, leased = redis.call('ZMSCORE', bucket, unpack(taken)), redis.call('ZMSCORE', leases, unpack(taken))
      local buried = redis.call('ZMSCORE', dead, unpack(taken))
      local old, running, searched = {}, {}, 0
      for n, id in ipairs(taken) do
        local due, hopeless, letter = terms(words[where[n]])
        if not hopeless and (letter == 'r' or buried[n] and not leased[n]) then
          old[#old + 1] = id
          live[where[n]] = false
          if leased[n] then
            running[#running + 1] = id
            nudge(channel, 'replace', topic, leased[n], id)
          elseif not delayed[n] and not buried[n] and due <= now then
            placed[id] = listed > 0 -- else its place was lost
          elseif not delayed[n] and not buried[n] and searched < 20 then
            searched = searched + 1
            unready(ready, id)
          end
        end
      end
      if #running > 0 then
        release(leases, running)
      end
      if #old > 0 then
        redis.call('ZREM', bucket, unpack(old))
        redis.call('ZREM', dead, unpack(old))
        redis.pcall('HDEL', attempts, unpack(old))
        redis.pcall('HDEL', errors, unpack(old))
        redis.pcall('HDEL', moved, unpack(old))
        redis.call('HDEL', pool, unpack(old))
      end
    end
  end
end

