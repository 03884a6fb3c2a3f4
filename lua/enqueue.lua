-- enqueue: stores new jobs of one topic, in the bucket when they are due later, at the tail of ready when they are due now.
--
-- KEYS[1]   pool      hash, job id to record
-- KEYS[2]   bucket    zset, job id scored by due time (Unix ms)
-- KEYS[3]   ready     list of job ids, next one at the head
-- KEYS[4]   leases    zset, job id scored by the end of its lease
-- KEYS[5]   dead      zset, job id scored by the time of burial
-- KEYS[6]   attempts  hash, job id to finished attempts
-- KEYS[7]   errors    hash, job id to its last errors
-- KEYS[8]   moved     hash, job id to its present due time, if that is not the record's
-- KEYS[9]   stats     hash, counter to number
-- KEYS[10]  receipt   string, the last call of the lane and its reply
-- ARGV[1]   number    number of this call in its lane
-- ARGV[2]   replace   1: a live job with the same id makes way; 0: it stays and the new one is refused
-- ARGV[3]   tick      ms, how far ahead the timers look by themselves
-- ARGV[4]   channel   the control channel
-- ARGV[5]   topic     the topic's name, for the control channel
-- ARGV[6..] jobs      for each job: id, head and tail of the record, due (Unix ms, or + and a delay in ms)
--
-- The record is head, the time of enqueueing, the due time, tail; the two times are msgpack strings of 13 digits.
-- No id may stand twice in one call. At most 1,000 jobs a call (unpack has a stack limit).
--
-- Returns {'ok', now, letters}: one letter a job, n for stored, d for a duplicate that was left alone; no letters: all stored.
-- Cost: O(jobs × log N).
local pool, bucket, ready, leases, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local attempts, errors, moved, stats, receipt = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local number, replace, tick, channel, topic = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local jobs, first, width = ARGV, 6, 4

local told = replay(receipt, number)
if told then
  return {'ok', now, told}
end

local ids, total = {}, 0
for at = first, #jobs, width do
  total = total + 1
  ids[total] = jobs[at]
end
local live = redis.call('HMGET', pool, unpack(ids))
local taken = replace == '1' and redis.call('ZMSCORE', leases, unpack(ids))

local records, stored = {}, 0 -- id, record, id, record …
local later, delayed = {}, 0 -- due, id, due, id …
local soon, old, letters, refused = {}, {}, {}, false
local earliest
local enqueued = '\173' .. stamp(now) .. '\173'
local when, due, due_text -- most jobs of a call are due at the same time
local at = first
for i = 1, total do
  local id, head, present = ids[i], jobs[at + 1], live[i]
  local known = present and string.sub(present, 1, 8) == string.sub(head, 1, 8) -- the record of this very call
  if not present or (replace == '1' and not known) then
    if jobs[at + 3] ~= when then
      when = jobs[at + 3]
      if string.byte(when) == 43 then
        due = now + when -- Lua reads "+5" as 5
      else
        due = math.max(tonumber(when), now)
      end
      due_text = stamp(due)
    end
    if due > now then
      later[delayed + 1] = due_text
      later[delayed + 2] = id
      delayed = delayed + 2
      if not earliest or due < earliest then
        earliest = due
      end
    else
      soon[#soon + 1] = id
    end
    records[stored + 1] = id
    records[stored + 2] = head .. enqueued .. due_text .. jobs[at + 2]
    stored = stored + 2
    if present then
      old[#old + 1] = id
      if taken[i] then
        nudge(channel, 'replace', topic, taken[i], id)
      end
    end
  elseif not known then
    refused = true
    letters[i] = 'd'
  end
  at = at + width
end

-- The old job goes before the new one comes; places come before records: an id without a record is dropped by take.
if #old > 0 then
  release(leases, old)
  redis.call('ZREM', bucket, unpack(old))
  redis.call('ZREM', dead, unpack(old))
  redis.call('HDEL', attempts, unpack(old))
  redis.call('HDEL', errors, unpack(old))
  redis.call('HDEL', moved, unpack(old))
end
if delayed > 0 then
  if earliest - now <= tick then
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

local reply = ''
if refused then
  for i = 1, total do
    letters[i] = letters[i] or 'n'
  end
  reply = table.concat(letters)
end
count(stats, 'enqueued', stored / 2)
remember(receipt, number, reply)
return {'ok', now, reply}
