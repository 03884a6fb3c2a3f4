-- replace: makes live jobs give way to new ones with the same IDs. enqueue follows it in the same
-- call and stores those.
--
-- KEYS[1]    pool      hash, job ID to record
-- KEYS[2]    bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[3]    ready     list of job IDs, next one at the head
-- KEYS[5]    sizes     hash, the size of the largest record
-- KEYS[6]    receipt   string, the last call of the series and its reply
-- KEYS[7]    leases    zset, job ID scored by the end of its lease
-- KEYS[8]    dead      zset, job ID scored by the time of burial
-- KEYS[10]   tombs     zset, closed job ID scored by when it is free again (Unix ms)
-- KEYS[11]   attempts  hash, job ID to number of finished attempts
-- KEYS[12]   errors    hash, job ID to its error log
-- KEYS[13]   moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[14]   handoff   list of job IDs on the way from a server's wait to its take
-- KEYS[15]   turn      zset, key of waiting jobs scored by its pass
-- KEYS[16]   lane      zset, place and ID of every ready job that has a key
-- KEYS[17]   keyed     hash, job ID to its place in a lane
-- KEYS[18]   blockers  zset, place and ID of every job that its key waits for (see limits)
-- KEYS[19]   parked    zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[20]   holders   zset, key and ID of every running job whose key has a limit of them
-- ARGV[1]    number    number of this call in its series
-- ARGV[3]    channel   the control channel
-- ARGV[4]    topic     the topic's name, for the control channel
-- ARGV[5..]  jobs      for each job: ID, head and tail of the record, and when it is due, preceded
--                      by the letter that says which jobs it replaces. After a question mark can
--                      follow how the caller knows the old job (see prelude/expect.lua)
--
-- The other keys and arguments, and the reply, are those of enqueue. A new job that is due now
-- keeps the place in ready of an old one if neither has a key, and its order in the lane if both
-- have the same key and head start. The entry of any other old job leaves ready as by cancel, for
-- up to twenty jobs a call. Other old IDs can stay there. Entries always leave their lanes. A tomb
-- keeps no job from replacing another. A job whose old one is not as its caller knows it, or is
-- gone, is refused like a duplicate.
-- Cost: O(jobs × log N).
-- Then: enqueue
-- Uses: now receipt stats sizes terms whole lease unready control ring expect place rouse key
-- Uses: free_keys unblock close_books holder straggler
do
  local pool, bucket, ready, sizes = KEYS[1], KEYS[2], KEYS[3], KEYS[5]
  local receipt, leases, dead = KEYS[6], KEYS[7], KEYS[8]
  local tombs = KEYS[10]
  local attempts, errors, moved, handoff = KEYS[11], KEYS[12], KEYS[13], KEYS[14]
  local turn, lane, keyed = KEYS[15], KEYS[16], KEYS[17]
  local blockers, parked, holders = KEYS[18], KEYS[19], KEYS[20]
  local number, channel, topic = ARGV[1], ARGV[3], ARGV[4]
  local jobs, first, width = ARGV, 5, 4

  local kept = {}
  replaced.note = to_lane
  function replaced.enlane()
    return enlane(turn, lane, keyed, sizes, ready, kept)
  end

  if not replay(receipt, number) then
    local ids, words, wants = {}, {}, {}
    for at = first, #jobs, width do
      local due, wanted = string.match(jobs[at + 3], '^([^?]*)%?(.*)$')
      jobs[at + 3] = due or jobs[at + 3]
      ids[#ids + 1], words[#words + 1], wants[#words + 1] = jobs[at], jobs[at + 3], wanted
    end
    local live, placed = namesakes(pool, sizes, ids, jobs, first, width), {}
    replaced.live, replaced.placed, replaced.gone = live, placed, {}
    local taken, where, heads = {}, {}, {}
    for i, id in ipairs(ids) do
      local head = jobs[first + 1 + (i - 1) * width]
      local own = live[i] and string.sub(live[i], 1, 8) == string.sub(head, 1, 8)
      if not own and wants[i]
        and not unchanged(wants[i], id, pool, bucket, leases, dead, attempts, moved) then
        live[i] = live[i] or ''
      elseif live[i] and not own and string.match(words[i], '^%a') then
        taken[#taken + 1], where[#where + 1], heads[#heads + 1] = id, i, head
      end
    end
    if #taken > 0 then
      -- A wrong type must cause an error before the old jobs are deleted.
      local listed = redis.call('LLEN', ready)
      listed = listed > 0 and listed or redis.call('LLEN', handoff)
      local delayed = redis.call('ZMSCORE', bucket, unpack(taken))
      local leased = redis.call('ZMSCORE', leases, unpack(taken))
      local buried = redis.call('ZMSCORE', dead, unpack(taken))
      local lanes = redis.call('EXISTS', keyed) == 1
      local spots = lanes and redis.call('HMGET', keyed, unpack(taken)) or {}
      redis.call('ZCARD', lane)
      redis.call('ZCARD', turn)
      redis.call('ZCARD', blockers)
      redis.call('ZCARD', parked)
      redis.call('ZCARD', tombs)
      local old, left, running, entries, searched = {}, {}, {}, {}, 0
      local ends, left_by = {}, {} -- of those that are running
      for n, id in ipairs(taken) do
        local at = first + (where[n] - 1) * width
        local due, hopeless, letter = terms(jobs[at + 3], stamp_of(jobs[at + 1], jobs[at + 2]))
        if not hopeless and (letter == 'r' or buried[n] and not leased[n]) then
          old[#old + 1] = id
          left[#old] = spots[n]
          live[where[n]], replaced.gone[where[n]] = false, true
          if leased[n] then
            running[#running + 1] = id
            ends[#running], left_by[#running] = leased[n], spots[n] or false
            nudge(channel, 'replace', topic, leased[n], id)
          elseif spots[n] then
            entries[#entries + 1] = spots[n] .. id
            if redis.call('ZSCORE', lane, spots[n] .. id) and due <= now then
              kept[id] = spots[n]
            end
          elseif not delayed[n] and not buried[n] and due <= now
            and string.byte(heads[n], 9) % 2 == 1 then -- the new one has no key
            placed[id] = listed > 0 -- otherwise its place was lost
          elseif not delayed[n] and not buried[n] and searched < 20 then
            searched = searched + 1
            unready(ready, id)
          end
        end
      end
      if #running > 0 then
        redis.call('ZREM', leases, '') -- after a deletion, the script can write at maxmemory
        straggle(holders, sizes, running, ends, left_by)
        release(leases, running)
      end
      if #entries > 0 then
        redis.call('ZREM', lane, unpack(entries))
      end
      if #old > 0 then
        redis.call('ZREM', bucket, unpack(old))
        redis.call('ZREM', dead, unpack(old))
        if lanes then
          replaced.freed = unblock(blockers, parked, turn, lane, ready, old, left)
          redis.call('HDEL', keyed, unpack(old))
        end
        close_books(attempts, errors, moved, old)
        redis.call('HDEL', pool, unpack(old))
      end
    end
  end
end

