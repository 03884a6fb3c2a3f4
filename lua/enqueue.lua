-- enqueue: stores new jobs of one topic, in the bucket when they are due later, at the tail of ready when they are due now.
--
-- KEYS[1]   pool     hash, job id to record
-- KEYS[2]   bucket   zset, job id scored by due time (Unix ms)
-- KEYS[3]   ready    list of job ids, next one at the head
-- KEYS[4]   stats    hash, counter to number
-- KEYS[5]   sizes    hash, the size of the largest record
-- KEYS[6]   receipt  string, the last call of the lane and its reply
-- ARGV[1]   number   number of this call in its lane
-- ARGV[2]   tick     ms, how far ahead the timers look by themselves
-- ARGV[3]   channel  the control channel
-- ARGV[4]   topic    the topic's name, for the control channel
-- ARGV[5..] jobs     for each job: id, head and tail of the record, due (Unix ms, or + and a delay in ms)
--
-- The record is head, the time of enqueueing as a msgpack string of 13 digits, tail.
-- No id may stand twice in one call. At most 1,000 jobs a call (unpack has a stack limit).
--
-- Returns {'ok', now, letters}: one letter a job, n for stored, d for a duplicate that was left alone; no letters: all stored. A call sent
-- again gets the time of the first one.
-- Cost: O(jobs × log N).
local pool, bucket, ready, stats, sizes, receipt = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local number, tick, channel, topic = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local jobs, first, width = ARGV, 5, 4

local told = replay(receipt, number)
if told then
  local stored_at, told_letters = string.match(told, '^(%d+) (%a*)$')
  return {'ok', tonumber(stored_at) or now, told_letters or ''}
end

local ids, total = {}, 0
for at = first, #jobs, width do
  total = total + 1
  ids[total] = jobs[at]
end
local live = redis.call('HMGET', pool, unpack(ids))

local records, stored, largest = {}, 0, 0 -- id, record, id, record …
local later, delayed = {}, 0 -- due, id, due, id …
local soon, refused = {}, {}
local earliest
local enqueued = '\173' .. string.format('%013.0f', now)
local when, due, score -- most jobs of a call are due at the same time
local at = first
for i = 1, total do
  local id, head, present = ids[i], jobs[at + 1], live[i]
  if not present then
    if jobs[at + 3] ~= when then
      when = jobs[at + 3]
      if string.byte(when) == 43 then
        due = now + when -- Lua reads "+5" as 5
      else
        due = math.max(tonumber(when), now)
      end
      score = string.format('%.0f', due)
    end
    if due > now then
      later[delayed + 1] = score
      later[delayed + 2] = id
      delayed = delayed + 2
      if not earliest or due < earliest then
        earliest = due
      end
    else
      soon[#soon + 1] = id
    end
    local record = head .. enqueued .. jobs[at + 2]
    records[stored + 1] = id
    records[stored + 2] = record
    stored = stored + 2
    if #record > largest then
      largest = #record
    end
  elseif string.sub(present, 1, 8) ~= string.sub(head, 1, 8) then -- else it is the record of this very call
    refused[i] = true
  end
  at = at + width
end

sized(sizes, largest)
-- Places come before records: if something fails between the two, an id without a record is dropped by take.
if delayed > 0 then
  if earliest - now <= tonumber(tick) then
    local head = redis.call('ZRANGE', bucket, 0, 0, 'WITHSCORES')
    if not head[2] or tonumber(head[2]) > earliest then
      nudge(channel, 'wake', topic, 0, '')
    end
  end
  redis.call('ZADD', bucket, unpack(later))
end
if #soon > 0 then
  redis.call('RPUSH', ready, unpack(soon))
end
if stored > 0 then
  redis.call('HSET', pool, unpack(records))
end

local letters = ''
if next(refused) then
  for i = 1, total do
    letters = letters .. (refused[i] and 'd' or 'n')
  end
end
count(stats, 'enqueued', stored / 2)
remember(receipt, number, string.format('%.0f ', now) .. letters)
return {'ok', now, letters}
