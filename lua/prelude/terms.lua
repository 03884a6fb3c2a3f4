
-- Gives: terms namesakes replaced
-- Expects: now

-- terms parses when a job that a call stores is due: Unix ms, or + and a delay in ms. A letter can
-- precede it, which says what becomes of a job with its ID (see replace). After b, the delay is
-- followed by a slash and the most ms that a burst puts the job off. After a space, the time at
-- which the job expires can follow in the same form. After an exclamation mark, the ms for which
-- the job closes its ID, a slash, and how many tombs the topic may have can follow. It returns the
-- due time, whether the job could never run because it expires by then, the letter, the time of
-- enqueueing, from which delays count, and the two numbers about tombs (nil: none). The time is at,
-- if there is such a guess and it is at most 1,000 ms ago, or up to 100 ms ahead for a job with a
-- delay. Otherwise it is now.
local function terms(words, at)
  local due, till, letter, window, most = tonumber(words), nil, '', nil, nil
  if not due then
    local _
    letter, words, _, till, window, most =
      string.match(words, '^(%a?)(%+?%d+)/?(%d*) ?(%+?%d*)!?(%d*)/?(%d*)$')
    window, most = tonumber(window), tonumber(most)
    due = tonumber(words) -- Lua reads "+5" as 5
  end
  local delayed = string.byte(words) == 43
  local from = now
  if at and at >= now - 1000 and at <= now + (delayed and due > 0 and 100 or 0) then
    from = at
  end
  due = delayed and from + due or math.max(due, from)
  if not till or till == '' then
    return due, false, letter, from, window, most
  end
  local ends = tonumber(till)
  if string.byte(till) == 43 then
    ends = from + ends
  end
  return due, due >= ends, letter, from, window, most
end

-- namesakes looks up which IDs have a record. For each it returns false if there is none, a string
-- that begins with the nonce if the record may be that of this very call, and otherwise any other
-- string. It reads payloads only if all of them together are small, or if a record is as long as
-- that of the call. Reading that one costs no more than sending it did.
local function namesakes(pool, sizes, ids, jobs, first, width)
  local largest = #ids > 3 and redis.pcall('HGET', sizes, 'largest')
  if #ids > 3 and type(largest) ~= 'table'
    and #ids * (tonumber(largest or 2000) or 1048577) <= 1048576 then
    return redis.call('HMGET', pool, unpack(ids))
  end
  local found, at = {}, first
  for i, id in ipairs(ids) do
    found[i] = redis.call('HEXISTS', pool, id) == 1 and ''
    local head, tail = jobs[at + 1], jobs[at + 2]
    local bytes = #head + #tail + (tail == '' and 0 or 14)
    if found[i] and redis.call('HSTRLEN', pool, id) == bytes then
      found[i] = redis.call('HGET', pool, id)
    end
    at = at + width
  end
  return found
end

-- What precedes enqueue in the same call passes to it: live, the result of namesakes without the
-- replaced jobs; gone, which has true at the index of a job that replaces one; missing, which has
-- it at that of a job that was to replace one which is not there; placed, the IDs that have a place
-- in ready; note, which notes a job and reports whether it has a key; enlane, which gives those
-- jobs their places, and returns how many are due now; freed, the number of keys that have got a
-- turn; linked, which is told of each job before it is stored, and link, which stores what belongs
-- to flows; leave, which a closed topic needs and others do not pay for: it returns the functions
-- of leaving.lua, which become leaves, keep and stay; and merge, which ends what the call does to
-- jobs that take a new payload. It returns the letters, when they are due, and how many of the
-- stored records are of such jobs.
local replaced = {}
