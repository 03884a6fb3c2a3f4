
-- Gives: withdraw
-- Expects: unready_most expected release nudge unready unblock close_books end_run straggle look
-- Expects: endings

-- withdraw removes jobs in any state and their successors, and notifies the servers that run them.
-- An ID deep in ready stays there: take drops an ID without a record. wants has how the caller
-- knows each job (see expected; nil fits every job). noted has true at the index of a job of a
-- schedule whose history must record it. withdraw returns a letter for each of the first jobs: the
-- state it was in (s scheduled, r ready, u running, d dead), c if it is not as the caller knows it,
-- or g if there is no such job. A job without a record whose successor still waits counts as
-- scheduled. It ends before a job for which it would search ready too often. Where the topic has
-- limits, the handlers of running jobs keep their places. reporting is that of endings.
local function withdraw(ids, wants, noted, pool, bucket, ready, lane, keyed, leases, dead, attempts,
    errors, moved, runs, blockers, parked, turn, holders, sizes, next, channel, topic, notes, stats,
    reporting)
  local fences = redis.call('ZMSCORE', leases, unpack(ids))
  local delayed = redis.call('ZMSCORE', bucket, unpack(ids))
  local buried = redis.call('ZMSCORE', dead, unpack(ids))
  local lanes, waits, tell = redis.call('EXISTS', keyed, next, notes) > 0, false, nil
  if lanes then
    local others = redis.call('EXISTS', next, notes, notes) -- 1: next, 2: notes, 3: both
    waits = others % 2 == 1 and redis.call('HEXISTS', next, '') == 0
    tell = others > 1 and endings(notes, pool, stats, look, reporting)
    lanes = redis.call('EXISTS', keyed) == 1
  end
  local places = lanes and redis.call('HMGET', keyed, unpack(ids)) or {}
  if lanes then -- a wrong type must cause an error before the jobs are deleted
    redis.call('ZCARD', blockers)
    redis.call('ZCARD', parked)
    redis.call('ZCARD', turn)
    redis.call('ZCARD', lane)
  end
  local noticed = tell and tell.read(ids)
  local letters, gone, entries, laned, left, freed = {}, {}, {}, {}, {}, 0
  local waiting, finished, running, ends, spots = {}, {}, {}, {}, {}
  for i, id in ipairs(ids) do
    if #entries == unready_most then
      break
    end
    local letter = fences[i] and 'u' or buried[i] and 'd' or delayed[i] and 's' or 'r'
    letters[i] = 'g'
    local wanted, score = wants[i] or '', buried[i] or delayed[i]
    if wanted ~= ''
      and not expected(wanted, letter, score, id, pool, attempts, moved) then
      letters[i] = redis.call('HEXISTS', pool, id) == 1 and 'c' or 'g'
    elseif tell and tell.job(noticed, i, id, 'c', false, letter == 'd') -- needs the record
      or redis.call('HDEL', pool, id) == 1 then
      letters[i] = letter
      gone[#gone + 1] = id
      left[#gone] = places[i]
      if delayed[i] then
        waiting[#waiting + 1] = id
      end
      if buried[i] then
        finished[#finished + 1] = id
      end
      if fences[i] then
        running[#running + 1] = id
        ends[#running], spots[#running] = fences[i], places[i] or false
      end
      if letters[i] == 'r' and places[i] then
        laned[#laned + 1] = places[i] .. id
      elseif letters[i] == 'r' then
        entries[#entries + 1] = id
      end
    end
  end
  if #waiting > 0 then
    redis.call('ZREM', bucket, unpack(waiting))
  end
  if #finished > 0 then
    redis.call('ZREM', dead, unpack(finished))
  end
  if #running > 0 then
    straggle(holders, sizes, running, ends, spots)
    release(leases, running)
  end
  if tell and waits then
    for i, id in ipairs(ids) do
      if letters[i] and letters[i] ~= 'c' and (letters[i] ~= 'g' or (wants[i] or '') == '') then
        tell.heir(id, redis.call('HGET', next, id), 'c')
      end
    end
  end
  if tell then
    tell.close()
  end
  local tried = {}
  for i, id in ipairs(ids) do
    if letters[i] == 'u' then
      nudge(channel, 'cancel', topic, fences[i], id)
    end
    if noted[i] and letters[i] and letters[i] ~= 'g' and letters[i] ~= 'c' then
      tried[i] = redis.pcall('HGET', attempts, id)
    end
  end
  for _, id in ipairs(entries) do
    unready(ready, id)
  end
  if #laned > 0 then
    redis.pcall('ZREM', lane, unpack(laned))
  end
  if lanes and #gone > 0 then
    freed = unblock(blockers, parked, turn, lane, ready, gone, left)
    redis.pcall('HDEL', keyed, unpack(gone))
  end
  if #gone > 0 then
    close_books(attempts, errors, moved, gone)
  end
  for i, id in ipairs(waits and ids or {}) do
    local fits = letters[i] ~= 'g' or (wants[i] or '') == ''
    if letters[i] and letters[i] ~= 'c' and fits and redis.call('HDEL', next, id) == 1
      and letters[i] == 'g' then
      letters[i] = 's'
    end
  end
  for i, id in ipairs(ids) do
    if tried[i] ~= nil then
      end_run(runs, id, (type(tried[i]) == 'string' and tried[i] or 0) + 1, 'cancelled')
    end
  end
  return table.concat(letters), freed
end
