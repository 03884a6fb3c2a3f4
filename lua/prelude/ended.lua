
-- ended: tells those who wait for jobs how these have ended (see wait), and deletes what the runs
-- of jobs have noted (see note).
-- Gives: endings
-- Expects: now count

-- endings returns what does that in a topic. said is the key notes, stored the key pool, and totals
-- the key stats. send is look, or nil where no job ends but as another one, with the letter f.
-- reporting returns what tells flows how their members have ended (see reporter). It is called when
-- there is one, and is nil where send is. With pcall: it never decides the fate of a job.
local function endings(said, stored, totals, send, reporting)
  local saved = 2000 -- how many saved results a call deletes at most; prune deletes the left_of
  local of, puts, drops, calls, left_of = {}, {}, {}, {}, {}
  local relinked, report = {}, nil

  -- of.tell tells those who wait for the incarnation of a job with a nonce: those are the waiters
  -- that have it. rest follows the letter of the outcome. After f, it is the nonce of the
  -- incarnation that goes on, for which they wait from now on. A job that dies can be revived:
  -- a waiter without a name stays, so that its next end is written in place of this one. was_dead
  -- says that the job was not revived. The entry ******** stands for clients not registered (see
  -- prelude/wait.lua): they look for the outcome. It stays until it is a minute old.
  of.tell = function(id, waiters, nonce, kind, rest, stay, was_dead)
    local names, left, at, seen, asked = {}, '', 1, {}, false
    waiters = left_of[id] or waiters
    while true do
      local size, start = string.match(waiters, '^(%d+):()', at)
      if not size then
        break
      end
      at = start + size
      local entry = string.sub(waiters, start, at - 1)
      local name = string.sub(entry, 22)
      local polled = name == '' and string.sub(entry, 1, 8) == '********'
      if polled then
        local fresh = math.abs(now - (tonumber(string.sub(entry, 9)) or 0)) <= 60000
        asked, entry = asked or fresh and not was_dead, fresh and entry or ''
      elseif string.sub(entry, 1, 8) == nonce then
        asked = asked or name ~= '' or not was_dead
        names[#names + 1] = name ~= '' and name or nil
        entry = kind == 'f' and rest .. string.sub(entry, 9) or ''
      end
      if name == '' and not polled and (kind == 'd' or kind == 'f') then
        entry = '' -- one is enough
      end
      local who = string.sub(entry, 1, 8) .. string.sub(entry, 22)
      if entry ~= '' and not seen[who] then -- it can have waited for both
        left, seen[who] = left .. #entry .. ':' .. entry, true
      end
    end
    left_of[id] = left ~= waiters and left or left_of[id]
    if asked then
      if stay and kind == 'd' then
        left_of[id] = left .. '21:' .. nonce .. string.format('%013.0f', now)
      end
      puts[#puts + 1] = 'e' .. nonce
      puts[#puts + 1] = kind .. string.format(' %.0f ', now) .. rest
    end
    if #names > 0 and kind ~= 'f' then
      calls[#calls + 1] = {names, id}
    end
  end

  -- of.erase deletes the note of a job, and the results that the steps in it have saved.
  of.erase = function(id, note)
    local front = 's' .. #id .. ':' .. id .. string.sub(note, 1, 8)
    local at = string.match(note, '^%d+:()', 9)
    drops[#drops + 1] = 'p' .. id
    while at and saved > 0 do
      local size, start = string.match(note, '^(%d+):()', at)
      at = size and start + size
      if at then
        drops[#drops + 1], saved = front .. string.sub(note, start, at - 1), saved - 1
      end
    end
  end

  -- of.link tells the flow of an incarnation with a nonce, if the link is its own. Any other link
  -- is prune's: an earlier release has ended the member, or it waits in next. kind and rest are
  -- those of of.tell. The link of a last step that stays dead stays too.
  of.link = function(id, link, nonce, kind, rest, stay)
    if string.sub(link, 1, 8) ~= nonce then
      return
    elseif kind == 'f' then
      relinked[#relinked + 1] = 'l' .. id
      relinked[#relinked + 1] = rest .. string.sub(link, 9)
    elseif reporting then
      report = report or reporting()
      report.add(id, link, kind, rest, stay)
    end
  end

  -- of.read reads the waiters, the note and the link of each of some jobs, for of.job.
  of.read = function(list)
    local fields = {}
    for i, id in ipairs(list) do
      fields[3 * i - 2], fields[3 * i - 1], fields[3 * i] = 'w' .. id, 'p' .. id, 'l' .. id
    end
    local found = redis.pcall('HMGET', said, unpack(fields))
    return found.err and {} or found
  end

  -- of.job does all that for the job with an index, whose record is still in pool. how is the
  -- letter of its outcome, or a function that returns it, and what follows it. A job that stays
  -- keeps its note. was_dead: it is dead already. read is its record; nil: it was not read.
  of.job = function(found, i, id, how, stay, was_dead, read)
    local waiters, note, link = found[3 * i - 2], found[3 * i - 1], found[3 * i]
    local record = (waiters or link) and (read == nil and redis.pcall('HGET', stored, id) or read)
    if type(record) == 'string' then
      local kind, rest = how, ''
      if type(how) == 'function' then
        kind, rest = how(i, id)
      end
      if waiters then
        of.tell(id, waiters, string.sub(record, 1, 8), kind, rest or '', stay, was_dead)
      end
      if link then
        of.link(id, link, string.sub(record, 1, 8), kind, rest or '', stay)
      end
    end
    if note and not stay then
      of.erase(id, note)
    end
  end

  -- of.records reads the records of those jobs that need it: of 32 from an index on, because one
  -- can have 1 MiB.
  of.records = function(found, list, begin)
    local needed, at = {}, {}
    for i = begin, math.min(begin + 31, #list) do
      if found[3 * i - 2] or found[3 * i] then
        needed[#needed + 1] = list[i]
        at[#needed] = i
      end
    end
    local all, read = {}, redis.pcall('HMGET', stored, unpack(needed))
    for n, i in ipairs(at) do
      all[i] = read[n] or false
    end
    return all
  end

  -- of.jobs does it for all of them.
  of.jobs = function(list, how, stay, was_dead)
    local found, texts = of.read(list), {}
    for i, id in ipairs(list) do
      if (found[3 * i - 2] or found[3 * i]) and texts[i] == nil then
        texts = of.records(found, list, i)
      end
      of.job(found, i, id, how, stay, was_dead, texts[i])
    end
  end

  -- of.heir does it for a successor that waits in next, by its entry there.
  of.heir = function(id, entry, kind, rest)
    local start = string.match(entry or '', '^%d+ %a%S* ()')
    local found = start and redis.pcall('HMGET', said, 'w' .. id, 'l' .. id) or {}
    local nonce = start and string.sub(entry, start, start + 7)
    if found[1] then
      of.tell(id, found[1], nonce, kind, rest or '')
    end
    if found[2] then
      of.link(id, found[2], nonce, kind, rest or '')
    end
  end

  -- of.close writes all that, and sends the messages.
  of.close = function()
    local sum = 0
    for id, left in pairs(left_of) do
      if left == '' then
        drops[#drops + 1] = 'w' .. id
      else
        puts[#puts + 1], puts[#puts + 2] = 'w' .. id, left
      end
    end
    -- After a deletion, the script can write at maxmemory.
    redis.pcall('HDEL', said, '', unpack(drops))
    if #puts > 0 then
      redis.pcall('HSET', said, unpack(puts))
    end
    if #relinked > 0 then
      redis.pcall('HSET', said, unpack(relinked))
    end
    if report then
      report.close()
    end
    for _, one in ipairs(calls) do
      send(said, one[1], one[2])
      sum = sum + #one[1]
    end
    count(totals, 'awaited', sum)
  end
  return of
end
