-- wait: looks how jobs are or have ended, and registers clients that wait for their ends. Nothing
-- can happen between the look and the registration.
--
-- KEYS[1]   notes    hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[2]   pool     hash, job ID to record
-- KEYS[3]   bucket   zset, job ID scored by due time (Unix ms)
-- KEYS[4]   leases   zset, job ID scored by the end of its lease
-- KEYS[5]   dead     zset, job ID scored by the time of burial
-- KEYS[6]   errors   hash, job ID to its error log
-- KEYS[7]   done     zset, job ID scored by the time it is kept until
-- KEYS[8]   results  hash, job ID to its kept run and record
-- KEYS[9]   next     hash, running job ID to the successor that it will have
-- KEYS[10]  tombs    zset, closed job ID scored by when it is free again (Unix ms)
-- KEYS[11]  staying  zset, key of a closed place scored by the pass that has found it last
-- ARGV[1]   name     the client's name: it listens on the channel <prefix>:control:<name>
-- ARGV[2..]  jobs    for each job: ID, nonce (8 bytes; empty: that of the job which has the ID),
--                    and + to look and register, ? to look, - to leave. After + can follow the
--                    key of the job, which says whether a closed place takes it. At most 500
--
-- Eight clients can be registered for an incarnation, and an ID can have 64 registrations. One that
-- is not renewed for a minute, by a look with +, is gone. Safe to send twice.
-- Returns {'ok', now, answers}. answers has one text for each of the first jobs: for a hundred of
-- them at most, for at least one, and otherwise as many as have 1 MiB. l, nonce, state (s for
-- scheduled, r for ready, u for running) and note: the job lives, and the client is registered, if
-- it asked for that. v instead of l: it is not, because there are too many, and asks again after a
-- second. The end of the job leaves an outcome for it all the same. e, nonce and outcome: it has
-- ended. h: another job has the ID. p: no job has the ID, and the end of one with the nonce is not
-- known. After both the client is registered too, if it asked for that; H and P instead: it is not,
-- as with v. g: there is no such job, and no nonce was given. a: the same, and the topic is a
-- closed place of one that has partitions. k, nonce and outcome: as e, but no nonce was given, the
-- job is done and kept, and the place is closed: another partition can have a later job with the
-- ID. A: a nonce was given, no job has the ID, and the place is closed, also for the key; the
-- client is not registered. Empty after -.
-- A client is registered at maxmemory too.
-- Cost: O(jobs).
-- Uses: now successor wait place staying
local notes, pool, bucket, leases, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local errors, done, results, next, tombs = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local staying = KEYS[11]
local name, jobs, first, width = ARGV[1], ARGV, 2, 3

-- living returns the nonce and the state of the unfinished job that has an ID, or of its successor
-- if that has the wanted nonce or there is no such job. Of a dead job it also returns the outcome.
local function living(id, wanted)
  local record = redis.call('HGET', pool, id)
  local nonce = record and string.sub(record, 1, 8)
  if not nonce or wanted ~= '' and nonce ~= wanted then
    local _, _, heir = successor_of(redis.call('HGET', next, id))
    local its = heir and string.sub(heir, 1, 8)
    if its and (its == wanted or wanted == '') then
      return its, 's'
    end
    return nonce
  end
  local leased, buried = redis.call('ZSCORE', leases, id), redis.call('ZSCORE', dead, id)
  if buried and not leased then
    return nonce, 'd', string.format('d %.0f ', tonumber(buried))
      .. (redis.call('HGET', errors, id) or '')
  end
  return nonce, leased and 'u' or redis.call('ZSCORE', bucket, id) and 's' or 'r'
end

-- kept returns the nonce and the outcome of a done job that is kept.
local function kept(id)
  local value = redis.call('ZSCORE', done, id) and redis.call('HGET', results, id)
  local size, from = string.match(value or '', '^(%d+):()')
  if size then
    local about = string.sub(value, 1, from + size - 1)
    local output = tonumber(string.match(about, '^%d+:{"output":(%d+)') or 0)
    local ending = string.match(about, '"end":(%d+)') or '0'
    return string.sub(value, from + size, from + size + 7),
      'o ' .. ending .. ' ' .. about .. string.sub(value, #value - output + 1)
  end
end

-- shut reports whether the place takes no new jobs of a key.
local function shut(key)
  return redis.call('ZSCORE', tombs, '')
    and not (key ~= '' and stays(staying, redis.call('ZSCORE', staying, ''), key))
end

-- answer looks at one job.
local function answer(id, wanted, verb)
  if verb == '-' then
    register(notes, id, wanted, name, true)
    return ''
  end
  local outcome = wanted ~= '' and redis.call('HGET', notes, 'e' .. wanted)
  if outcome and string.byte(outcome) ~= 100 then -- not d: a dead job can have been revived
    return 'e' .. wanted .. outcome
  end
  local nonce, state, ended = living(id, wanted)
  if state == 'd' then
    return 'e' .. nonce .. ended
  elseif state then
    local note = redis.call('HGET', notes, 'p' .. id) or ''
    note = string.sub(note, 1, 8) == nonce and note or ''
    local waits = verb == '?' or register(notes, id, nonce, name)
    return (waits and 'l' or 'v') .. nonce .. state .. note
  end
  local last, how = kept(id)
  if last and (last == wanted or wanted == '') then
    return (wanted == '' and redis.call('ZSCORE', tombs, '') and 'k' or 'e') .. last .. how
  elseif outcome then
    return 'e' .. wanted .. outcome
  elseif wanted == '' then
    return redis.call('ZSCORE', tombs, '') and 'a' or 'g'
  elseif not nonce and shut(string.sub(verb, 2)) then
    return 'A'
  end
  local unknown = nonce and 'h' or 'p'
  local waits = verb == '?' or register(notes, id, wanted, name)
  return waits and unknown or string.upper(unknown)
end

local answers, bytes = {}, 0
for at = first, math.min(#jobs, first + 100 * width - 1), width do -- of 500, to be short
  local id, nonce = jobs[at], jobs[at + 1]
  if jobs[at + 2] ~= '-' then
    bytes = bytes + redis.call('HSTRLEN', notes, 'e' .. nonce) + redis.call('HSTRLEN', pool, id)
      + redis.call('HSTRLEN', errors, id) + redis.call('HSTRLEN', results, id)
      + redis.call('HSTRLEN', next, id)
    if #answers > 0 and bytes > 1048576 then
      break
    end
  end
  answers[#answers + 1] = answer(id, nonce, jobs[at + 2])
end
return {'ok', now, answers}
