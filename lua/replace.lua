-- replace: makes live jobs give way to new ones with the same IDs, or take their payloads. enqueue
-- follows it in the same call and stores the new ones.
--
-- KEYS[1]    pool      hash, job ID to record
-- KEYS[2]    bucket    zset, job ID scored by due time (Unix ms)
-- KEYS[3]    ready     list of job IDs, next one at the head
-- KEYS[4]    stats     hash, counter to number
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
-- KEYS[21]   next      hash, running job ID to the successor that it will have
-- KEYS[22]   notes     hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[23]   parcels   zset, what is on the way to other topics, by target and number
-- KEYS[24]   plans     hash, target to the plan by which its parcels are delivered
-- KEYS[25]   staying   zset, key of a closed place scored by the pass that has found it last
-- ARGV[1]    number    number of this call in its series
-- ARGV[3]    channel   the control channel
-- ARGV[4]    topic     the topic's name, for the control channel
-- ARGV[5..]  jobs      for each job: ID, head and tail of the record, and when it is due, preceded
--                      by a letter. After a question mark can follow how the caller knows the old
--                      job (see prelude/expect.lua)
--
-- The letter says what becomes of a job that has the ID. r: it is replaced. w: it is replaced
-- unless it is running. d: it is replaced if it is dead. l and b: it is replaced if it is dead. If
-- it waits, it takes the new record, and keeps its attempts, its errors and its tally. If it is
-- running, the new job waits in next as its successor, in place of any other. After l, such a job
-- or successor is due when it was before. After b, it is due after the delay, but not later than
-- the most ms after the burst of calls began. One that has run before is not due earlier than it
-- was, and one that is ready is due now. For a member of a flow l and b are as no letter, unless it
-- is dead.
--
-- The other keys and arguments, and the reply, are those of enqueue. letters can have three more: S
-- and R if a job that is scheduled or ready has taken the new record, U if the new job is the
-- successor of the running one. dues has when each job is due that is stored with l or b, with
-- spaces between them.
--
-- A new job that is due now
-- keeps the place in ready of an old one if neither has a key, and its order in the lane if both
-- have the same key and head start. The entry of any other old job leaves ready as by cancel, for
-- up to twenty jobs a call. Other old IDs can stay there. Entries always leave their lanes. A tomb
-- keeps no job from replacing another. Nor does a topic that is closed. But one with another key,
-- which has left it (see prelude/staying.lua), is refused like a duplicate. So is a job whose old
-- one is not as its caller knows it, or is gone, unless the topic is closed to it.
-- Cost: O(jobs × log N).
-- Then: enqueue
-- Uses: now receipt stats sizes terms whole lease unready control ring expect trace place rouse
-- Uses: key free_keys unblock close_books holder straggler successor burst merge
do
  local pool, bucket, ready, stats, sizes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
  local receipt, leases, dead = KEYS[6], KEYS[7], KEYS[8]
  local tombs = KEYS[10]
  local attempts, errors, moved, handoff = KEYS[11], KEYS[12], KEYS[13], KEYS[14]
  local turn, lane, keyed = KEYS[15], KEYS[16], KEYS[17]
  local blockers, parked, holders, next = KEYS[18], KEYS[19], KEYS[20], KEYS[21]
  local notes, parcels, plans, staying = KEYS[22], KEYS[23], KEYS[24], KEYS[25]
  local number, channel, topic = ARGV[1], ARGV[3], ARGV[4]
  local jobs, first, width = ARGV, 5, 4

  local kept, closed = {}, nil
  function replaced.leave()
    -- Uses: staying leaving
    return leaving(staying)
  end
  replaced.note = replaced.linked and function(id, record, due)
    replaced.linked(id, record)
    return to_lane(id, record, due)
  end or to_lane
  function replaced.enlane()
    if replaced.link then
      replaced.link()
    end
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
    replaced.live, replaced.placed, replaced.gone, replaced.missing = live, placed, {}, {}
    local taken, where, heads, shy = {}, {}, {}, false
    for i, id in ipairs(ids) do
      local head = jobs[first + 1 + (i - 1) * width]
      local own = live[i] and string.sub(live[i], 1, 8) == string.sub(head, 1, 8)
      if live[i] and not own and closed == nil then -- asked once, also because of its type
        closed = redis.call('ZSCORE', tombs, '') or false
        if closed then
          replaced.leaves, replaced.keep, replaced.stay = replaced.leave()
        end
      end
      local leaves = closed and live[i] and not own
        and replaced.leaves(head, jobs[first + 2 + (i - 1) * width], redis.call('HGET', keyed, id))
      if not own and wants[i]
        and not unchanged(wants[i], id, pool, bucket, leases, dead, attempts, moved) then
        live[i], replaced.missing[i] = live[i] or '', not live[i]
      elseif live[i] and not own and not leaves and string.match(words[i], '^%a') then
        taken[#taken + 1], where[#where + 1], heads[#heads + 1] = id, i, head
      end
      shy = shy or string.match(words[i], '^[lb]') ~= nil
    end
    local later = shy
      and merging(ids, jobs, first, width, next, sizes, stats, moved, keyed, blockers, pool)
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
      local others = redis.call('EXISTS', next, notes, notes) -- 1: next, 2: notes, 3: both
      local waits, tell = others % 2 == 1 and redis.call('HEXISTS', next, '') == 0, nil
      if others > 1 then
        -- Uses: look ended
        tell = endings(notes, pool, stats, look, function()
          -- Uses: parcels post link
          return reporter(notes, parcels, plans)
        end)
      end
      local old, left, running, entries, searched = {}, {}, {}, {}, 0
      local ends, left_by, ended = {}, {}, {} -- of those that are running; ended: not merged
      for n, id in ipairs(taken) do
        local i = where[n]
        local at = first + (i - 1) * width
        local due, hopeless, how = terms(jobs[at + 3], stamp_of(jobs[at + 1], jobs[at + 2]))
        local gives_way = how == 'r' or how == 'w' and not leased[n]
          or buried[n] and not leased[n]
        if tell and (how == 'l' or how == 'b') and not gives_way
          and redis.pcall('HEXISTS', notes, 'l' .. id) == 1 then
          how = '' -- it keeps the record that says so
        end
        if how == 'l' or how == 'b' then
          if leased[n] then
            later.follow(i, tell)
            if replaced.keep and later.letters[i] then
              replaced.keep(heads[n], jobs[first + 2 + (i - 1) * width])
            end
            live[i] = later.letters[i] and string.sub(heads[n], 1, 8) or live[i]
            if later.letters[i] and replaced.linked then
              replaced.linked(id, heads[n])
            end
          elseif not buried[n] then
            local entry = waits and redis.call('HGET', next, id)
            local tries = redis.call('HGET', attempts, id)
            due, hopeless = later.take_over(i, delayed[n], tries, spots[n], entry)
            gives_way = true
          end
        end
        if gives_way and not hopeless then
          old[#old + 1] = id
          left[#old] = spots[n]
          live[i], replaced.gone[i] = false, true
          if tell then
            local merged = later and later.letters[i]
            local ending, heir = merged and 'f' or 'r', merged and string.sub(heads[n], 1, 8) or ''
            tell.jobs({id}, function() return ending, heir end, false, buried[n] and not leased[n])
            if waits then
              tell.heir(id, redis.call('HGET', next, id), ending, heir)
            end
          end
          if not later or not later.letters[i] then
            ended[#ended + 1] = id
          end
          if leased[n] then
            running[#running + 1] = id
            ends[#running], left_by[#running] = leased[n], spots[n] or false
          elseif spots[n] then
            entries[#entries + 1] = spots[n] .. id
            if redis.call('ZSCORE', lane, spots[n] .. id) and due <= now
              or later and later.blocks[id] then
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
      if tell then
        tell.close()
      end
      if #running > 0 then
        redis.call('ZREM', leases, '') -- after a deletion, the script can write at maxmemory
        straggle(holders, sizes, running, ends, left_by)
        release(leases, running)
        for n, id in ipairs(running) do
          nudge(channel, 'replace', topic, ends[n], id)
        end
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
        if #ended > 0 then
          close_books(attempts, errors, moved, ended)
        end
        redis.call('HDEL', pool, unpack(old))
        if waits then
          redis.call('HDEL', next, unpack(old))
        end
      end
    end
  end
end
