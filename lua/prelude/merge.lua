
-- merge: jobs with the letter l or b (see replace).
-- Gives: merging
-- Expects: now own_terms burst successor_of sized count whole replaced has_key touch

-- given_due returns when a job was due that has not moved. Of a long record it is not read.
local function given_due(pool, id)
  if redis.call('HSTRLEN', pool, id) > 65536 then
    return now
  end
  local record = redis.call('HGET', pool, id) or ''
  local from = has_key(record) and 33 + string.byte(record, 27) or 26
  local function int()
    local n = string.byte(record, from) or 0
    local size = n > 203 and n < 208 and 2 ^ (n - 204) or 0
    n = size == 0 and n < 128 and n or 0
    for i = from + 1, from + size do
      n = 256 * n + (string.byte(record, i) or 0)
    end
    from = from + 1 + size
    return n
  end
  local enqueued, at, delay = tonumber(string.sub(record, 13, 25)) or now, int(), int()
  return string.format('%.0f', at > 0 and math.max(at, enqueued) or enqueued + delay)
end

-- merging returns what is done about such jobs of a call. letters has S, R or U at the index of a
-- job whose record a job of that state takes. blocks has the places of those that their keys wait
-- for. follow notes the successor of a running job, and take_over what becomes of a waiting one.
-- tell (see endings; nil: nobody) is told of a successor that gives way.
local function merging(ids, jobs, first, width, next, sizes, stats, moved, keyed, blockers, pool)
  local later = {letters = {}, blocks = {}}
  local dues, whys, tallies = {}, {}, {}
  local followed, taken_over = 0, 0

  -- rewrite makes enqueue read when a job is due, which is known now.
  local function rewrite(i, due, ends, rest)
    local till = ends and ' ' .. string.format('%.0f', ends) or ''
    jobs[first + 3 + (i - 1) * width] = string.format('%.0f', due) .. till .. rest
    return due, ends and due >= ends
  end

  later.follow = function(i, tell)
    local at = first + (i - 1) * width
    local id, head, tail = jobs[at], jobs[at + 1], jobs[at + 2]
    local letter, due, longest, ends, rest = own_terms(jobs[at + 3])
    local entry = redis.call('HGET', next, id)
    local known, why, record = successor_of(entry)
    if record and string.sub(record, 1, 8) == string.sub(head, 1, 8) then -- of this very call
      due = known
    else
      if letter == 'b' then
        due, why = burst(due, longest, why)
      else
        due, why = known and math.max(known, now) or due, 'latest'
      end
      local _, hopeless = rewrite(i, due, ends, rest)
      if hopeless then
        return
      end
      local enqueued = '\173' .. string.format('%013.0f', now)
      record = tail == '' and whole(head, now, enqueued) or head .. enqueued .. tail
      sized(sizes, #record)
      if tell and known then
        tell.heir(id, entry, 'f', string.sub(head, 1, 8))
      end
      local has_moved = redis.pcall('HEXISTS', moved, id) == 1
      touch(moved, {id}, {has_moved and '' or given_due(pool, id)}) -- whoever cancels both sees it
      redis.call('HSET', next, id, string.format('%.0f ', due) .. why .. ' ' .. record)
      followed = followed + 1
    end
    later.letters[i], dues[i] = 'U', due
  end

  later.take_over = function(i, planned, tries, place, entry)
    local at = first + (i - 1) * width
    local letter, due, longest, ends, rest = own_terms(jobs[at + 3])
    local known = redis.call('HGET', moved, jobs[at]) or ''
    local spent, snoozes = string.match(known, '(%d+) (%d+) [01]$')
    local why = string.match(known, '^%d+ (debounce%S*)')
    if not why then
      local _, successors = successor_of(entry)
      why = successors
    end
    if letter == 'b' then
      due, why = burst(due, longest, why)
      if planned and (tonumber(tries or 0) > 0 or tonumber(snoozes or 0) > 0) then
        due = math.max(due, tonumber(planned))
      end
    else
      due, why = tonumber(planned or now), 'latest'
    end
    due = planned and math.max(due, now) or now
    local _, hopeless = rewrite(i, due, ends, rest)
    if hopeless then
      return due, true
    end
    if place and planned and redis.call('ZSCORE', blockers, place .. jobs[at]) then
      later.blocks[jobs[at]] = place
    end
    later.letters[i], dues[i], whys[i] = planned and 'S' or 'R', due, why
    tallies[i] = (spent or '0') .. ' ' .. (snoozes or '0') .. ' 0' -- its own expiry counts
    taken_over = taken_over + 1
    return due, false
  end

  local own = {} -- the words, before they are rewritten
  for i = 1, #ids do
    own[i] = jobs[first + 3 + (i - 1) * width]
  end
  replaced.merge = function(letters)
    local list, waits = {}, redis.pcall('EXISTS', next) == 1
    for i, id in ipairs(ids) do
      local letter, due, longest = own_terms(own[i])
      if letter and not (letters and letters[i]) then
        if waits and not replaced.live[i] then
          redis.pcall('HDEL', next, id) -- v0.1.0 has ended a job, and its successor is older
        end
        if not dues[i] then
          dues[i] = due
          if letter == 'b' and not replaced.live[i] then -- else it is the record of this very call
            dues[i], whys[i] = burst(due, longest)
          end
        end
        if whys[i] then
          redis.pcall('HSET', moved, id,
            string.format('%.0f ', dues[i]) .. whys[i] .. ' ' .. (tallies[i] or '0 0 0'))
        end
        local place = later.blocks[id] and redis.call('HGET', keyed, id)
        if place and string.sub(place, 1, -9) == string.sub(later.blocks[id], 1, -9) then
          redis.call('ZADD', blockers, 0, place .. id) -- its key goes on waiting for it
        end
        list[#list + 1] = string.format('%.0f', dues[i])
        if later.letters[i] then
          letters = letters or {}
          letters[i] = later.letters[i]
        end
      end
    end
    count(stats, 'debounced', followed + taken_over)
    return letters, #list > 0 and table.concat(list, ' ') or nil, taken_over
  end
  return later
end
