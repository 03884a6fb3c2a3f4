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
-- KEYS[10]   attempts  hash, job ID to number of finished attempts
-- KEYS[11]   errors    hash, job ID to its error log
-- KEYS[12]   moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[13]   handoff   list of job IDs on the way from a server's wait to its take
-- KEYS[14]   turn      zset, key of waiting jobs scored by its pass
-- KEYS[15]   lane      zset, place and ID of every ready job that has a key
-- KEYS[16]   keyed     hash, job ID to its place in a lane
-- KEYS[17]   blockers  zset, place and ID of every job that its key waits for (see limits)
-- KEYS[18]   parked    zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[19]   holders   zset, key and ID of every running job whose key has a limit of them
-- ARGV[1]    number    number of this call in its series
-- ARGV[3]    channel   the control channel
-- ARGV[4]    topic     the topic's name, for the control channel
-- ARGV[5..]  jobs      for each job: ID, head and tail of the record, and when it is due, preceded
--                      by the letter that says which jobs it replaces
--
-- The other keys and arguments, and the reply, are those of enqueue. A new job that is due now
-- keeps the place in ready of an old one if neither has a key, and its order in the lane if both
-- have the same key and head start. The entry of any other old job leaves ready as by cancel, for
-- up to twenty jobs a call. Other old IDs can stay there. Entries always leave their lanes.
-- Cost: O(jobs × log N).
-- Then: enqueue

-- Gives: time now

-- now is Redis's clock in Unix ms. All due times and lease ends are compared with it and with no
-- other clock.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Gives: receipt_ms replay remember

-- A caller numbers the calls of a series, upwards. If the reply to a call is lost and the call is
-- sent again, replay finds the number and the script returns its first reply. A call with a lower
-- number was abandoned by its caller and comes late, from a connection that was considered dead, or
-- two callers use one series. It must do nothing, and its reply is the error PASSED.
-- After the number, a slash and ms can say how long the receipt is kept. Default: 3 minutes. After
-- another slash, a tag can say what the call is about. The same number with another tag is another
-- call, which comes too late too.
--
-- With a time, replay also writes the receipt anew: it is kept from now on, and a WAIT that follows
-- covers this write, so the first call too. If Redis refuses that, nobody may take the reply for
-- confirmed, and the error is UNCONFIRMED. DEL comes first, because Redis does not refuse it for
-- lack of memory, and after it no write.
local receipt_ms = 180000

local function replay(receipt, number)
  local own, kept, tag = string.match(number, '^(%d+)/?(%d*)/?(%w*)$')
  local text = redis.call('GET', receipt) or ''
  local last, about, reply = string.match(text, '^(%d+)/?(%w*):(.*)$')
  if last == own and about == tag then
    if kept ~= '' then
      local dropped = redis.pcall('DEL', receipt)
      if type(dropped) == 'table' then
        error('UNCONFIRMED ' .. dropped.err, 0)
      end
      redis.call('SET', receipt, text, 'PX', kept)
    end
    return reply
  end
  if last and (last == own or tonumber(last) > tonumber(own)) then
    error('PASSED the series of this call has come to ' .. last, 0)
  end
  return nil
end

-- A receipt is written with pcall and last: it never decides the fate of a job.
local function remember(receipt, number, reply)
  local own, kept, tag = string.match(number, '^(%d+)/?(%d*)(/?%w*)$')
  kept = kept ~= '' and kept or receipt_ms
  redis.pcall('SET', receipt, own .. tag .. ':' .. reply, 'PX', kept)
end

-- Gives: count

-- count adds to a counter. It returns the new value, if that is known. With pcall: a counter never
-- decides the fate of a job.
local function count(stats, field, n)
  if n > 0 then
    return redis.pcall('HINCRBY', stats, field, n)
  end
end

-- Gives: sized

-- sized notes the size of the largest record that a call stores. Scripts that read records limit
-- their reading by it. Records of at most 2,000 bytes are not noted. It must be called before the
-- records are written. With pcall: the size never decides the fate of a job.
local function sized(sizes, bytes)
  if bytes > 2000 then
    local largest = redis.pcall('HGET', sizes, 'largest')
    if type(largest) ~= 'table' and bytes > (tonumber(largest or 0) or 0) then
      redis.pcall('HSET', sizes, 'largest', bytes)
    end
  end
end

-- Gives: terms namesakes replaced
-- Expects: now

-- terms parses when a job that a call stores is due: Unix ms, or + and a delay in ms. A letter can
-- precede it: r if the job replaces any job with its ID, d if it replaces only a dead one. After a
-- space, the time at which the job expires can follow in the same form. It returns the due time,
-- whether the job could never run because it expires by then, and the letter.
local function terms(words)
  local due, till, letter = tonumber(words), nil, ''
  if not due then
    letter, words, till = string.match(words, '^(%a?)(%+?%d+) ?(%+?%d*)$')
    due = tonumber(words) -- Lua reads "+5" as 5
  end
  due = string.byte(words) == 43 and now + due or math.max(due, now)
  if not till or till == '' then
    return due, false, letter
  end
  local ends = tonumber(till)
  if string.byte(till) == 43 then
    ends = now + ends
  end
  return due, due >= ends, letter
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
    if found[i] and redis.call('HSTRLEN', pool, id) == #jobs[at + 1] + 14 + #jobs[at + 2] then
      found[i] = redis.call('HGET', pool, id)
    end
    at = at + width
  end
  return found
end

-- What precedes enqueue in the same call passes to it: live, the result of namesakes without the
-- replaced jobs; placed, the IDs that have a place in ready; note, which notes a job and reports
-- whether it has a key; enlane, which gives those jobs their places, and returns how many are due
-- now; and freed, the number of keys that have got a turn.
local replaced = {}

-- Gives: anchor release

-- anchor is a member of leases as long as leases has others. Redis keeps a small zset in a compact
-- form, and every access scans the whole of it. A long member makes Redis choose the other form,
-- which is four times as fast with 64 leases. The anchor is longer than an ID can be, and its score
-- is +inf.
local function anchor()
  return string.rep('-', 1025)
end

-- release ends leases, and removes the anchor after the last one.
local function release(leases, ids)
  redis.call('ZREM', leases, unpack(ids))
  if redis.call('ZCARD', leases) == 1 and redis.call('ZSCORE', leases, anchor()) then
    redis.call('DEL', leases)
  end
end

-- Gives: unready_most unready

-- unready removes the entry of a ready job if it is among the first or last thousand of the list.
-- Any other entry stays for take or prune to drop, so the cost does not depend on the length of the
-- list. With pcall: the entry never decides the fate of a job.
-- A call about many jobs removes at most unready_most entries, and leaves the rest of the jobs to
-- another call.
local unready_most = 100
local function unready(ready, id)
  for _, side in ipairs({1, -1}) do
    local at = redis.pcall('LPOS', ready, id, 'RANK', side, 'MAXLEN', 1000)
    if type(at) == 'number' then
      redis.pcall('LREM', ready, side, id)
      return
    end
  end
end

-- Gives: nudge

-- nudge sends the servers of a prefix a message about one job, or with an empty ID about a topic.
-- With pcall: a message never decides the fate of a job, even if the right to publish is missing.
local function nudge(channel, verb, topic, fence, id)
  redis.pcall('PUBLISH', channel, verb .. ' ' .. fence .. ' ' .. #topic .. ' ' .. topic .. id)
end

-- Gives: ring
-- Expects: nudge

-- ring wakes servers that wait for jobs, one for each job put into ready, at most 100: the longest
-- waiting first. A name leaves idle before the topic is published on its channel. If nobody listens
-- there any more, the next one is rung; after 1,000 such names that ends. If the right to publish
-- there is missing, the message goes to the control channel. With pcall: a ring never decides the
-- fate of a job.
local function ring(idle, channel, topic, jobs)
  if redis.pcall('ZCARD', idle) == 0 then
    return
  end
  local left, silent = math.min(jobs, 100), 0
  local names = redis.pcall('ZRANGE', idle, 0, left - 1)
  while names[1] and redis.pcall('ZREM', idle, unpack(names)) == #names do
    for _, name in ipairs(names) do
      local heard = redis.pcall('PUBLISH', channel .. ':' .. name, topic)
      if heard == 0 then
        silent = silent + 1
      else
        left = left - 1
      end
      if type(heard) == 'table' then
        nudge(channel, 'ring', topic, 0, name)
      end
    end
    names = left > 0 and silent < 1000 and redis.pcall('ZRANGE', idle, 0, left - 1) or {}
  end
end

-- Gives: place_rest key_of lane_of lane_range of_record has_key placed_at place_of pass_steps
-- Gives: offer

-- A key is what users call so: jobs can have one, which they share with other jobs (Key in the
-- library). Its lane is the line of its ready jobs, in Redis, in the order in which they are taken.
-- Comments say key for what has limits, a hold or a turn, and lane for that line only.
--
-- A place in a lane has the length of the key in one byte, the key, 11 hexadecimal digits of the
-- due time less the head start (Unix ms), 10 of a number, 8 of the head start plus 2^31, and the
-- nonce of the record. In lane the job ID follows.
local place_rest = 37 -- bytes of a place after its key

-- key_of cuts a place, or an entry of lane, into the key, the place and the ID. It returns nil if
-- that is impossible.
local function key_of(entry)
  local last = 1 + (string.byte(entry) or 256) + place_rest
  if #entry >= last then
    return string.sub(entry, 2, last - place_rest), string.sub(entry, 1, last),
      string.sub(entry, last + 1)
  end
end

-- lane_of returns the text with which all entries of a key in lane begin.
local function lane_of(key)
  return string.char(#key) .. key
end

-- lane_range returns the bounds of all entries of a key, in lane and in holders, as ZRANGEBYLEX has
-- them.
local function lane_range(key)
  local first = lane_of(key)
  return '[' .. first, '(' .. first .. 'g'
end

-- of_record reports whether a place is that of a record.
local function of_record(place, record)
  return string.sub(place, -8) == string.sub(record, 1, 8)
end

-- has_key reports whether a record has a key. Those of an even format version have one: all
-- versions have it in the same place, also those that later releases write.
local function has_key(record)
  local mark, size = string.byte(record, 26, 27) -- a malformed record has no key
  return size ~= nil and string.byte(record, 9) % 2 == 0 and mark == 196
    and string.byte(record, 28 + size) == 210 and #record >= 32 + size
end

-- placed_at returns a place, of the text before the due time, the head start in ms plus 2^31, and
-- the nonce.
local function placed_at(first, due, number, start, nonce)
  local front = math.max(0, math.min(due - start + 2147483648, 17592186044415))
  return first .. string.format('%011x%010x%08x', front, number, start) .. nonce
end

-- place_of returns the place of a record with a key, for a due time.
local function place_of(record, due, number)
  local size = string.byte(record, 27)
  local a, b, c, d = string.byte(record, 29 + size, 32 + size)
  local start = ((a * 256 + b) * 256 + c) * 256 + d
  start = start < 2147483648 and start + 2147483648 or start - 2147483648
  return placed_at(string.sub(record, 27, 27 + size), due, number, start, string.sub(record, 1, 8))
end

-- Passes are whole numbers of steps. A pass of half a step more is that of a key that has just
-- joined. Take has to give it its first pass: the scripts that offer turns do not know the weights.
local pass_steps = 262144 -- of one turn of a key without a weight

-- offer gives keys turns. A key that has none joins those that are to be served next. A pass that a
-- key has is kept. back: the turns of these keys had come when something stopped them. They are the
-- next ones.
local function offer(turn, keys, back)
  local head = redis.call('ZRANGE', turn, 0, 0, 'WITHSCORES')
  local lowest = math.floor((tonumber(head[2] or nil) or 0) * pass_steps) / pass_steps
  local pass = 0
  if head[2] and back then
    pass = lowest - 1 / pass_steps
  elseif head[2] then -- half a step gets lost beside a pass that is too high
    pass = lowest < 17179869184 and lowest + 0.5 / pass_steps or lowest + 1
  end
  local turns = {back and 'LT' or 'NX'}
  for i, key in ipairs(keys) do
    turns[2 * i], turns[2 * i + 1] = string.format('%.17g', pass), key
  end
  redis.call('ZADD', turn, unpack(turns))
end

-- Gives: rouse

-- rouse wakes servers that block, one for each job that is ready in a lane, because they wait for
-- IDs in ready. An empty ID has no record, so take drops it. At most 64 are there.
local function rouse(ready, jobs)
  local missing = math.min(jobs, 64) - redis.call('LLEN', ready)
  if missing > 0 then
    local empty = {}
    for i = 1, missing do
      empty[i] = ''
    end
    redis.call('RPUSH', ready, unpack(empty))
  end
end

-- Gives: laned to_lane enlane
-- Expects: has_key place_of place_rest now key_of offer rouse

-- The jobs with keys that a call stores.
local laned = {}

-- to_lane notes a job that is to have a place in the lane of its key. It reports whether the job
-- has a key.
local function to_lane(id, record, due)
  if not has_key(record) then
    return false
  end
  laned[#laned + 1] = {id, record, due}
  return true
end

-- enlane gives the jobs that to_lane has noted their places, and those that are due now a place in
-- line: first their keys get turns, which are hints, then the jobs enter lane, and then keyed. kept
-- has the former places of jobs that keep their order. It returns how many are due now.
local function enlane(turn, lane, keyed, sizes, ready, kept)
  if #laned == 0 then
    return 0
  end
  local number = redis.call('HINCRBY', sizes, 'number', #laned) - #laned
  local entries, places, keys, seen = {}, {}, {}, {}
  for i, job in ipairs(laned) do
    local id, record, due = job[1], job[2], job[3]
    local place, old = place_of(record, due, number + i), kept and kept[id]
    local rest = #place - place_rest
    if old and #old == #place and string.sub(old, 1, rest) == string.sub(place, 1, rest)
      and string.sub(old, -16, -9) == string.sub(place, -16, -9) then
      place = string.sub(old, 1, -9) .. string.sub(place, -8)
    end
    places[2 * i - 1], places[2 * i] = id, place
    if due <= now then
      local key, n = key_of(place), #entries
      entries[n + 1], entries[n + 2] = 0, place .. id
      if not seen[key] then
        seen[key], keys[#keys + 1] = true, key
      end
    end
  end
  if #entries > 0 then
    offer(turn, keys)
    redis.call('ZADD', lane, unpack(entries))
  end
  redis.call('HSET', keyed, unpack(places))
  if #entries > 0 then
    rouse(ready, #entries / 2)
  end
  return #entries / 2
end

-- Gives: free_keys
-- Expects: lane_range offer

-- free_keys takes keys off held or parked. Those that have jobs in lane (lanes) get turns in turn
-- (round) first, so none is lost if one of them is of a wrong type. Take parks a key when its turn
-- has come, so a key that was parked (back) is the next one. It returns the number of these jobs.
local function free_keys(zset, round, lanes, keys, back)
  redis.call('ZREM', lanes, '') -- after a deletion, the script can write at maxmemory
  local jobs, again = 0, {}
  for _, key in ipairs(keys) do
    local n = redis.call('ZLEXCOUNT', lanes, lane_range(key))
    if n > 0 then
      jobs, again[#again + 1] = jobs + n, key
    end
  end
  if jobs > 0 then
    offer(round, again, back)
  end
  redis.call('ZREM', zset, unpack(keys))
  return jobs
end

-- Gives: blocking unblock
-- Expects: key_of free_keys rouse

-- blocking lists those jobs with places that are blockers, and their keys.
local function blocking(blockers, ids, places)
  local entries, owners, some, keys = {}, {}, {}, {}
  for i, id in ipairs(ids) do
    if places[i] then
      entries[#entries + 1], owners[#owners + 1] = places[i] .. id, i
    end
  end
  if #entries > 0 and redis.call('EXISTS', blockers) == 1 then
    for n, score in ipairs(redis.call('ZMSCORE', blockers, unpack(entries))) do
      if score then
        some[#some + 1], keys[#keys + 1] = entries[n], key_of(entries[n])
      end
    end
  end
  return some, keys
end

-- unblock removes jobs from blockers. Their keys get turns if they are parked. It returns how many
-- keys with waiting jobs have got one.
local function unblock(blockers, parked, turn, lane, ready, ids, places)
  local some, keys = blocking(blockers, ids, places)
  if #some == 0 then
    return 0
  end
  redis.call('ZREM', blockers, unpack(some))
  local stopped, seen = {}, {}
  for i, score in ipairs(redis.call('ZMSCORE', parked, unpack(keys))) do
    if score and not seen[keys[i]] then
      seen[keys[i]], stopped[#stopped + 1] = true, keys[i]
    end
  end
  if #stopped == 0 then
    return 0
  end
  local n = math.min(#stopped, free_keys(parked, turn, lane, stopped, true))
  rouse(ready, n)
  return n
end

-- close_books: deletes the books of jobs.
-- Gives: close_books

-- close_books deletes the finished attempts (tries), the error logs and the present due times of
-- jobs that have ended. With pcall, and after everything else: leftovers never decide the fate of a
-- job.
local function close_books(tries, logs, dues, ended)
  redis.pcall('HDEL', tries, unpack(ended))
  redis.pcall('HDEL', logs, unpack(ended))
  redis.pcall('HDEL', dues, unpack(ended))
end

-- Gives: holder_of held_by till_of unhold
-- Expects: lane_of key_of

-- holder_of returns the entry in holders of a running job whose key has a limit. The entries of a
-- key are those of its lane_range.
local function holder_of(key, id)
  return lane_of(key) .. '0' .. id
end

-- held_by returns the ID of an entry in holders of a key.
local function held_by(key, entry)
  return string.sub(entry, #key + 3)
end

-- till_of returns until when an entry in holders of a key counts that is a straggler's, and nil for
-- any other. Those of the empty key are all stragglers of the topic.
local function till_of(key, entry)
  return string.sub(entry, #key + 2, #key + 2) == '1'
    and tonumber(string.sub(entry, #key + 3, #key + 19)) or nil
end

-- unhold frees the places that jobs have in the limits of their keys.
local function unhold(holders, keyed, ids)
  if redis.call('EXISTS', holders) == 0 then
    return
  end
  local places, ended = redis.call('HMGET', keyed, unpack(ids)), {}
  for i, id in ipairs(ids) do
    local key = places[i] and key_of(places[i])
    if key then
      ended[#ended + 1] = holder_of(key, id)
    end
  end
  if #ended > 0 then
    redis.call('ZREM', holders, unpack(ended))
  end
end
-- straggler: handlers that may still run although their jobs have been cancelled or replaced.
-- Gives: stragglers_of straggle
-- Expects: now lane_of key_of holder_of

-- stragglers_of returns the entries in holders of the handler of a job whose lease ends at a time:
-- the one that counts for the limits of the topic, and the one that counts for those of the key.
-- They count until that time.
local function stragglers_of(key, ending, id)
  local till = '1' .. string.format('%017.3f', tonumber(ending))
  return lane_of('') .. till .. lane_of(key) .. id, lane_of(key) .. till .. id
end

-- straggle makes the handlers of running jobs whose leases are about to be released stragglers, if
-- the topic has limits. With pcall: they never decide the fate of a job.
local function straggle(holders, sizes, ids, ends, places)
  if redis.pcall('HEXISTS', sizes, 'limits') ~= 1 then
    return
  end
  local entries, over = {}, {}
  for i, id in ipairs(ids) do
    if tonumber(ends[i]) > now then
      local key = places[i] and key_of(places[i]) or ''
      local of_topic, of_key = stragglers_of(key, ends[i], id)
      entries[#entries + 1], entries[#entries + 2] = 0, of_topic
      if key ~= '' then
        entries[#entries + 1], entries[#entries + 2] = 0, of_key
        over[#over + 1] = holder_of(key, id)
      end
    end
  end
  if #entries > 0 then
    redis.pcall('ZADD', holders, unpack(entries))
  end
  if #over > 0 then
    redis.pcall('ZREM', holders, unpack(over))
  end
end
do
  local pool, bucket, ready, sizes = KEYS[1], KEYS[2], KEYS[3], KEYS[5]
  local receipt, leases, dead = KEYS[6], KEYS[7], KEYS[8]
  local attempts, errors, moved, handoff = KEYS[10], KEYS[11], KEYS[12], KEYS[13]
  local turn, lane, keyed = KEYS[14], KEYS[15], KEYS[16]
  local blockers, parked, holders = KEYS[17], KEYS[18], KEYS[19]
  local number, channel, topic = ARGV[1], ARGV[3], ARGV[4]
  local jobs, first, width = ARGV, 5, 4

  local kept = {}
  replaced.note = to_lane
  function replaced.enlane()
    return enlane(turn, lane, keyed, sizes, ready, kept)
  end

  if not replay(receipt, number) then
    local ids, words = {}, {}
    for at = first, #jobs, width do
      ids[#ids + 1], words[#words + 1] = jobs[at], jobs[at + 3]
    end
    local live, placed = namesakes(pool, sizes, ids, jobs, first, width), {}
    replaced.live, replaced.placed = live, placed
    local taken, where, heads = {}, {}, {}
    for i, id in ipairs(ids) do
      local head = jobs[first + 1 + (i - 1) * width]
      local other = live[i] and string.sub(live[i], 1, 8) ~= string.sub(head, 1, 8)
      if other and string.match(words[i], '^%a') then
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
      local old, left, running, entries, searched = {}, {}, {}, {}, 0
      local ends, left_by = {}, {} -- of those that are running
      for n, id in ipairs(taken) do
        local due, hopeless, letter = terms(words[where[n]])
        if not hopeless and (letter == 'r' or buried[n] and not leased[n]) then
          old[#old + 1] = id
          left[#old] = spots[n]
          live[where[n]] = false
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

-- enqueue: stores new jobs of one topic: in bucket if they are due later, at the tail of ready if
-- they are due now.
--
-- KEYS[1]    pool     hash, job ID to record
-- KEYS[2]    bucket   zset, job ID scored by due time (Unix ms)
-- KEYS[3]    ready    list of job IDs, next one at the head
-- KEYS[4]    stats    hash, counter to number
-- KEYS[5]    sizes    hash, the size of the largest record
-- KEYS[6]    receipt  string, the last call of the series and its reply
-- KEYS[7]    leases   zset, job ID scored by the end of its lease
-- KEYS[8]    dead     zset, job ID scored by the time of burial
-- KEYS[9]    idle     zset, waiting server scored by the time its wait began (Unix ms)
-- ARGV[1]    number   number of this call in its series
-- ARGV[2]    tick     ms, how far ahead timers look without a wake-up
-- ARGV[3]    channel  the control channel
-- ARGV[4]    topic    the topic's name, for the control channel
-- ARGV[5..]  jobs     for each job: ID, head and tail of the record, and when it is due (Unix ms,
--                     or + and a delay in ms). More can surround the due time: see
--                     prelude/terms.lua
--
-- The record is head, the time of enqueueing as a msgpack string of 13 digits, tail. No ID may
-- occur twice in one call. At most 1,000 jobs a call (unpack has a stack limit).
--
-- Returns {'ok', now, letters, since, mark}. letters has one letter a job: n for stored, x for
-- refused because it expires before it is due, or the state of the job that has its ID and is
-- unchanged: s for scheduled, r for ready, u for running, d for dead. No letters: all are stored.
-- since has the time of burial of each dead one, with a space before it. mark is + if these were
-- the topic's first jobs. A repeated call returns the time of the first one.
-- Cost: O(jobs × log N).

-- wake: wakes the timers of a topic for jobs that are about to enter bucket.
-- Gives: wake
-- Expects: now nudge

-- wake tells the timers when the first of these jobs is due, if one of them may sleep beyond that:
-- it is due within a tick, and before all others. It must be called before the jobs enter bucket.
local function wake(bucket, earliest, tick, channel, topic)
  if earliest - now <= tonumber(tick) then
    local head = redis.call('ZRANGE', bucket, 0, 0, 'WITHSCORES')
    if not head[2] or tonumber(head[2]) > earliest then
      nudge(channel, 'wake', topic, 0, '')
    end
  end
end
local pool, bucket, ready, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local sizes, receipt, leases, dead, idle = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local number, tick, channel, topic = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local jobs, first, width = ARGV, 5, 4

local told = replay(receipt, number)
if told then
  local told_mark, at, told_letters, told_since = string.match(told, '^(%+?)(%d+) (%a*)(.*)$')
  return {'ok', tonumber(at) or now, told_letters or '', told_since or '', told_mark or ''}
end

local stamp = string.format('%013.0f', now)
local enqueued = '\173' .. stamp

-- One new job, as a lone caller sends it, needs no lists. This does the same as what follows, in
-- the same order.
if #jobs == 8 and not replaced.note and redis.call('HEXISTS', pool, jobs[5]) == 0 then
  local id, due, hopeless = jobs[5], terms(jobs[8])
  if not hopeless then
    local record = jobs[6] .. enqueued .. jobs[7]
    sized(sizes, #record)
    if due > now then
      wake(bucket, due, tick, channel, topic)
      redis.call('ZADD', bucket, string.format('%.0f', due), id)
    else
      redis.call('RPUSH', ready, id)
    end
    redis.call('HSET', pool, id, record)
    if due <= now then
      ring(idle, channel, topic, 1)
    end
    local mark = count(stats, 'enqueued', 1) == 1 and '+' or ''
    remember(receipt, number, mark .. stamp .. ' ')
    return {'ok', now, '', '', mark}
  end
end

local ids, total = {}, 0
for at = first, #jobs, width do
  total = total + 1
  ids[total] = jobs[at]
end
local live, placed = replaced.live, replaced.placed
live = live or namesakes(pool, sizes, ids, jobs, first, width)

local records, stored, largest = {}, 0, 0 -- id, record, id, record …
local later, delayed = {}, 0 -- due, id, due, id …
local soon, letters, taken, twins = {}, nil, {}, {}
local earliest
local when, due, hopeless, score -- most jobs of a call are due at the same time
local at = first
for i = 1, total do
  local id, head, present = ids[i], jobs[at + 1], live[i]
  if jobs[at + 3] ~= when then
    when = jobs[at + 3]
    due, hopeless = terms(when)
    score = due > now and string.format('%.0f', due)
  end
  if present and string.sub(present, 1, 8) == string.sub(head, 1, 8) then
    at = at + width -- it is the record of this very call
  else
    if hopeless then
      letters = letters or {}
      letters[i] = 'x'
    elseif present then
      taken[#taken + 1], twins[#twins + 1] = id, i
    else
      local record = head .. enqueued .. jobs[at + 2]
      local keyed = replaced.note and replaced.note(id, record, due)
      if due > now then
        later[delayed + 1] = score
        later[delayed + 2] = id
        delayed = delayed + 2
        if not earliest or due < earliest then
          earliest = due
        end
      elseif not keyed and (not placed or not placed[id]) then
        soon[#soon + 1] = id
      end
      records[stored + 1] = id
      records[stored + 2] = record
      stored = stored + 2
      if #record > largest then
        largest = #record
      end
    end
    at = at + width
  end
end

local since = ''
if #taken > 0 then
  local buried = redis.call('ZMSCORE', dead, unpack(taken))
  local leased = redis.call('ZMSCORE', leases, unpack(taken))
  local waiting = redis.call('ZMSCORE', bucket, unpack(taken))
  letters = letters or {}
  for n, i in ipairs(twins) do
    letters[i] = buried[n] and 'd' or leased[n] and 'u' or waiting[n] and 's' or 'r'
    since = since .. (buried[n] and string.format(' %.0f', tonumber(buried[n])) or '')
  end
end

if earliest then
  wake(bucket, earliest, tick, channel, topic)
end

-- place_jobs: puts new jobs into bucket and ready, but for those whose keys give them places.
-- Expects: sized sizes bucket ready later soon largest
--
-- later has due times and IDs by turns, soon has IDs, and largest is the size of the largest
-- record. Places come before records: if something fails between the two, take drops an ID without
-- a record.

sized(sizes, largest)
if #later > 0 then
  redis.call('ZADD', bucket, unpack(later))
end
if #soon > 0 then
  redis.call('RPUSH', ready, unpack(soon))
end
local pushed = #soon + (replaced.enlane and replaced.enlane() or 0) + (replaced.freed or 0)
if stored > 0 then
  redis.call('HSET', pool, unpack(records))
end
if pushed > 0 then
  ring(idle, channel, topic, pushed)
end

if letters then
  for i = 1, total do
    letters[i] = letters[i] or 'n'
  end
end
letters = letters and table.concat(letters) or ''
-- The topic's first jobs, as far as Redis knows: it may have restarted empty.
local mark = count(stats, 'enqueued', stored / 2) == stored / 2 and '+' or ''
remember(receipt, number, mark .. stamp .. ' ' .. letters .. since)
return {'ok', now, letters, since, mark}
