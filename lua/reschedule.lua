-- reschedule: gives scheduled or ready jobs other due times.
--
-- KEYS[1]  pool     hash, job ID to record
-- KEYS[2]  bucket   zset, job ID scored by due time (Unix ms)
-- KEYS[3]  ready    list of job IDs, next one at the head
-- KEYS[4]  leases   zset, job ID scored by the end of its lease
-- KEYS[5]  dead     zset, job ID scored by the time of burial
-- KEYS[6]  moved    hash, job ID to its current due time, if it differs from the record's
-- KEYS[7]  receipt  string, the last call of the series and its reply
-- KEYS[8]  idle     zset, waiting server scored by the time its wait began (Unix ms)
-- KEYS[9]  turn     zset, key of waiting jobs scored by its pass
-- KEYS[10]  lane     zset, place and ID of every ready job that has a key
-- KEYS[11]  keyed    hash, job ID to its place in a lane
-- KEYS[12]  sizes    hash, the size of the largest record, and the number of the last place
-- KEYS[13]  blockers zset, place and ID of every job that its key waits for (see limits)
-- KEYS[14]  parked   zset, key whose limits are reached scored by when it gets a turn (Unix ms)
-- KEYS[15]  attempts hash, job ID to number of finished attempts
-- KEYS[16]  tombs    zset, closed job ID scored by when it is free again (Unix ms)
-- ARGV[1]  number   number of this call in its series
-- ARGV[2]  tick     ms, how far ahead timers look without a wake-up
-- ARGV[3]  channel  the control channel
-- ARGV[4]  topic    the topic's name, for the control channel
-- ARGV[5..]  jobs   for each job: ID, new due time (Unix ms, or + and a delay in ms), nonce of the
--                   record that the next value belongs to, when the job expires (Unix ms), and
--                   how the caller knows the job (see prelude/expect.lua). Empty nonce: the caller
--                   does not know whether the job expires. Each ID once, at most 500
--
-- Returns {'ok', now, letters, heads, dues}. letters has one letter for each of the first jobs, at
-- least one. s for scheduled and r for ready: moved, and this was its state. u for running, d for
-- dead, g if there is no such job, a if there is none and the topic is a closed place of one that
-- has partitions, c if it is not as the caller knows it, b because it would expire by that time:
-- left alone. p: nothing was done, because the job can expire and the caller sent
-- another nonce. For each p, heads has the part of the record before the payload, or an empty
-- string. The caller then calls again with the values that it reads there. Nothing was done for the
-- other jobs, because the call has read 1 MiB of records or has removed 100 entries of ready. dues
-- has, for each s, when the job was due (Unix ms), with spaces between them. It is empty if a call
-- of an outbox was sent again.
-- Cost: O(jobs × log N).
-- Uses: now receipt unready control wake ring expect trace place rouse line_up reseat free_keys
-- Uses: unblock released elsewhere
local pool, bucket, ready, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local dead, moved, receipt, idle = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local turn, lane, keyed, sizes = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local blockers, parked, attempts, tombs = KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local number, tick, channel, topic = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local jobs, first, width = ARGV, 5, 5
local bytes_most, head_most = 1048576, 49152

local told, dues_told = string.match(replay(receipt, number) or '', '^(%S+) ?(.*)$')

-- The records of the first jobs. Other jobs are for another call.
local ids, records, bytes = {}, {}, 0
for at = first, told and first + #told * width - 1 or #jobs, width do
  if #jobs > first + width then
    bytes = bytes + redis.call('HSTRLEN', pool, jobs[at])
    if bytes > bytes_most and at > first then
      break
    end
  end
  ids[#ids + 1] = jobs[at]
  records[#ids] = redis.call('HGET', pool, jobs[at])
end

if told then -- nothing was done for p, so its record can be another one by now
  local heads = {}
  for i = 1, #told do
    if string.sub(told, i, i) == 'p' then
      heads[#heads + 1] = string.sub(records[i] or '', 1, head_most)
    end
  end
  return {'ok', now, told, heads, dues_told}
end

local leased = redis.call('ZMSCORE', leases, unpack(ids))
local buried = redis.call('ZMSCORE', dead, unpack(ids))
local waiting = redis.call('ZMSCORE', bucket, unpack(ids))
local known = redis.call('HMGET', moved, unpack(ids))
local letters, heads, fields = {}, {}, {}
local later, entries, soon, earliest = {}, {}, {}, nil
local changed, dues, waited = {}, {}, {} -- every job, its due time, and whether it was ready
local before = {}
for i, id in ipairs(ids) do
  if #entries == unready_most then
    break
  end
  local at = first + (i - 1) * width
  local due, nonce, expires = jobs[at + 1], jobs[at + 2], tonumber(jobs[at + 3])
  local letter = waiting[i] and 's' or 'r'
  if not records[i] then
    letter = absent(tombs)
  elseif leased[i] then
    letter = 'u'
  elseif buried[i] then
    letter = 'd'
  elseif not expected(jobs[at + 4], letter, waiting[i], id, pool, attempts, moved) then
    letter = 'c'
  else
    due = string.byte(due) == 43 and now + due or math.max(tonumber(due), now) -- "+5" is 5
    local tally = string.match(known[i] or '', '%d+ %d+ [01]$') or '0 0 0'
    -- A revived job does not expire.
    if string.sub(tally, -1) == '0' and (string.byte(records[i], 10) or 0) % 8 >= 4 then
      if string.sub(records[i], 1, 8) ~= nonce then
        letter = 'p'
        heads[#heads + 1] = string.sub(records[i], 1, head_most)
      elseif due >= expires then
        letter = 'b'
      end
    end
    if letter == 's' or letter == 'r' then
      fields[#fields + 1] = id
      local why = traced(released.why or 'reschedule', known[i])
      fields[#fields + 1] = due .. ' ' .. why .. ' ' .. tally
      local n = #changed + 1
      changed[n], dues[n], waited[n] = id, due, letter == 'r'
      if letter == 's' then
        before[#before + 1] = string.format('%.0f', tonumber(waiting[i]))
      end
      if due > now then
        later[#later + 1], later[#later + 2] = due, id
        earliest = math.min(earliest or due, due)
        if letter == 'r' then
          entries[#entries + 1] = id
        end
      elseif letter == 's' then
        soon[#soon + 1] = id
      end
    end
  end
  letters[i] = letter
end

if #fields > 0 then
  redis.call('HSET', moved, unpack(fields))
end
-- A job with a key leaves its lane or enters it. New places come first.
local laned, left = {}, {}
local old, new = reseat(keyed, sizes, changed, dues)
for i, id in ipairs(changed) do
  if new[i] then
    laned[id] = true
    if waited[i] then
      left[#left + 1] = old[i] .. id
    end
    if dues[i] <= now then
      laned[#laned + 1] = id
    end
  end
end
local lined = #laned > 0 and line_up(turn, lane, keyed, laned) or 0
-- A key no longer waits for such a job.
local freed = unblock(blockers, parked, turn, lane, ready, changed, old)
if #left > 0 then
  redis.call('ZREM', lane, unpack(left))
end
if lined > 0 then
  rouse(ready, lined)
end
if #later > 0 then
  wake(bucket, earliest, tick, channel, topic)
  redis.call('ZADD', bucket, unpack(later))
  for _, id in ipairs(entries) do
    if not laned[id] then
      unready(ready, id)
    end
  end
end
if #soon > 0 then
  local plain = {}
  for _, id in ipairs(soon) do
    if not laned[id] then
      plain[#plain + 1] = id
    end
  end
  if #plain > 0 then
    redis.call('RPUSH', ready, unpack(plain))
  end
  redis.call('ZREM', bucket, unpack(soon))
end
if #soon + freed > 0 then
  ring(idle, channel, topic, #soon + freed)
end
letters, before = table.concat(letters), table.concat(before, ' ')
-- An earlier release can read the receipt of an outbox. It expects the letters alone.
local kept = string.find(number, '/', 1, true)
remember(receipt, number, kept and letters or letters .. ' ' .. before)
return {'ok', now, letters, heads, before}
