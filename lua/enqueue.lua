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
-- KEYS[10]   tombs    zset, closed job ID scored by when it is free again (Unix ms)
-- ARGV[1]    number   number of this call in its series
-- ARGV[2]    tick     ms, how far ahead timers look without a wake-up
-- ARGV[3]    channel  the control channel
-- ARGV[4]    topic    the topic's name, for the control channel
-- ARGV[5..]  jobs     for each job: ID, head and tail of the record, and when it is due (Unix ms,
--                     or + and a delay in ms). More can surround the due time: see
--                     prelude/terms.lua
--
-- The record is head, the time of enqueueing as a msgpack string of 13 digits, tail. Or head is the
-- whole record, and tail is empty: its caller has guessed the time (see prelude/whole.lua). No ID
-- may occur twice in one call. At most 1,000 jobs a call (unpack has a stack limit).
--
-- Returns {'ok', now, letters, since, mark, dues}. letters has one letter a job: n for stored, x
-- for refused because it expires before it is due, or the state of the job that has its ID and is
-- unchanged: s for scheduled, r for ready, u for running, d for dead. t: no job has the ID, but it
-- is closed. v: the job was to close its ID, and the topic has too many tombs. a: no job has the
-- ID, and the topic takes no new ones, or none with the key (see prelude/staying.lua): it is a
-- place of one that has partitions, and closed. No letters: all are stored. since has the time of
-- burial of each dead one, and then when each closed ID is free, with a space before each. mark is
-- + if these were the topic's first jobs. dues is missing unless a job of the call has the letter l
-- or b (see replace). A repeated call returns the time of the first one.
-- Cost: O(jobs × log N).
-- Uses: now receipt stats sizes terms whole control wake ring
local pool, bucket, ready, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local sizes, receipt, leases, dead, idle = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local tombs = KEYS[10]
local number, tick, channel, topic = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local jobs, first, width = ARGV, 5, 4

local told = replay(receipt, number)
if told then
  local told_mark, at, told_letters, told_since, told_dues =
    string.match(told, '^(%+?)(%d+) (%a*)([^;]*);?(.*)$')
  return {'ok', tonumber(at) or now, told_letters or '', told_since or '', told_mark or '',
    told_dues ~= '' and told_dues or nil}
end

local stamp = string.format('%013.0f', now)
local enqueued = '\173' .. stamp

-- One new job, as a lone caller sends it, needs no lists. This does the same as what follows, in
-- the same order.
if #jobs == 8 and not replaced.note and redis.call('HEXISTS', pool, jobs[5]) == 0
  and redis.call('EXISTS', tombs) == 0 then
  local id, head, tail = jobs[5], jobs[6], jobs[7]
  local due, hopeless, _, from, window = terms(jobs[8], stamp_of(head, tail))
  if not hopeless and not window then
    local record = tail == '' and whole(head, from, enqueued) or head .. enqueued .. tail
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
    local mark = redis.pcall('HINCRBY', stats, 'enqueued', '1') == 1 and '+' or ''
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
local gone, missing = replaced.gone or {}, replaced.missing or {}
local closed = {} -- when the ID is free again, if no job has it; false: the whole topic is closed
if redis.call('EXISTS', tombs) == 1 then
  local ends, at = redis.call('ZMSCORE', tombs, '', unpack(ids)), first
  if ends[1] and replaced.leave and not replaced.leaves then
    replaced.leaves, replaced.keep, replaced.stay = replaced.leave()
  end
  for i = 1, total do
    local till = ends[i + 1] and tonumber(ends[i + 1]) > now and ends[i + 1]
    local leaves = ends[1] and replaced.leaves and replaced.leaves(jobs[at + 1], jobs[at + 2])
    local shut = ends[1] and leaves ~= false
    if not live[i] and not gone[i] and (till or shut) or missing[i] and shut and not till then
      live[i], closed[i] = '', till -- as if a job had the ID, so that other jobs pay nothing
    end
    at = at + width
  end
end

local records, stored, largest = {}, 0, 0 -- id, record, id, record …
local later, delayed = {}, 0 -- due, id, due, id …
local soon, letters, taken, twins = {}, nil, {}, {}
local refused, free = 0, ''
local graves, room, ended = {}, nil, nil -- graves: until when, id, until when, id …
local earliest
-- Most jobs of a call are due at the same time.
local when, due, hopeless, _, from, score, grave
local at = first
for i = 1, total do
  local id, head, tail, present = ids[i], jobs[at + 1], jobs[at + 2], live[i]
  if jobs[at + 3] ~= when or tail == '' then
    when = tail ~= '' and jobs[at + 3]
    local window, most
    due, hopeless, _, from, window, most = terms(jobs[at + 3], stamp_of(head, tail))
    score = due > now and string.format('%.0f', due)
    grave = window and string.format('%.0f', now + window)
    if window and not room then
      -- Uses: tombs
      room, ended = room_of(tombs, most, total)
    end
  end
  if present and string.sub(present, 1, 8) == string.sub(head, 1, 8) then
    at = at + width -- it is the record of this very call
  else
    if hopeless then
      letters = letters or {}
      letters[i] = 'x'
    elseif present and closed[i] == false then
      letters = letters or {}
      letters[i] = 'a'
    elseif present and closed[i] then
      letters = letters or {}
      letters[i], refused = 't', refused + 1
      free = free .. string.format(' %.0f', tonumber(closed[i]))
    elseif present then
      taken[#taken + 1], twins[#twins + 1] = id, i
    elseif grave and not gone[i] and room * 2 <= #graves then
      letters = letters or {}
      letters[i] = 'v'
    else
      if grave then
        graves[#graves + 1], graves[#graves + 2] = grave, id
      end
      if replaced.keep then
        replaced.keep(head, tail)
      end
      local record = tail == '' and whole(head, from, enqueued) or head .. enqueued .. tail
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
-- Uses: place_jobs
if replaced.stay then
  replaced.stay()
end
local pushed = #soon + (replaced.enlane and replaced.enlane() or 0) + (replaced.freed or 0)
if stored > 0 then
  redis.call('HSET', pool, unpack(records))
end
if #graves > 0 then
  if #ended > 0 then
    redis.call('ZREM', tombs, unpack(ended))
  end
  redis.call('ZADD', tombs, 'GT', unpack(graves))
end
if pushed > 0 then
  ring(idle, channel, topic, pushed)
end

local dues, merged
if replaced.merge then
  letters, dues, merged = replaced.merge(letters)
end
if letters then
  for i = 1, total do
    letters[i] = letters[i] or 'n'
  end
end
letters = letters and table.concat(letters) or ''
since = since .. free
count(stats, 'tombed', refused)
-- The topic's first jobs, as far as Redis knows: it may have restarted empty.
local fresh = stored / 2 - (merged or 0)
local mark = count(stats, 'enqueued', fresh) == fresh and '+' or ''
remember(receipt, number, mark .. stamp .. ' ' .. letters .. since .. (dues and ';' .. dues or ''))
return {'ok', now, letters, since, mark, dues}
