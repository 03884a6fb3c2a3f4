-- enqueue_one: stores one new job, the plainest: in bucket if it is due later, at the tail of ready
-- if it is due now.
--
-- KEYS[1]  pool     hash, job ID to record
-- KEYS[2]  bucket   zset, job ID scored by due time (Unix ms)
-- KEYS[3]  ready    list of job IDs, next one at the head
-- KEYS[4]  stats    hash, counter to number
-- KEYS[5]  receipt  string, the last call of the series and its reply
-- KEYS[6]  idle     zset, waiting server scored by the time its wait began (Unix ms)
-- ARGV[1]  number   number of this call in its series, and nothing more
-- ARGV[2]  id       job ID
-- ARGV[3]  head     of the record
-- ARGV[4]  tail     of the record
-- ARGV[5]  when     when it is due (Unix ms, or + and a delay in ms)
--
-- The record is as in enqueue, and has at most 2,000 bytes. The job has no key, does not expire
-- before it is due, and replaces none. If the ID has a record, or the series has come to this
-- number, the script does nothing: enqueue, sent with the same number, knows what that means.
--
-- A caller alone pays for each key, each word and each value of a reply. So the channel and the
-- topic are read from the name of pool, and the usual reply is a number.
--
-- Returns now: the job is stored; {'ok', now, '', '', '+'}: the same, and it is the topic's first
-- one; or {'known', now}: nothing was done.
-- Cost: O(log N).
local time = redis.call('TIME')
-- Text for text: it takes longer to make a text of a number.
local ms = time[1] .. string.sub('00000' .. time[2], -6, -4)
local stamp = string.sub('0000' .. ms, -13)
local now = ms + 0

-- Only a job that is due within a tick needs these.
local function messages()
  -- Uses: control wake ring
  return wake, ring
end

local pool, bucket, ready, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local receipt, idle = KEYS[5], KEYS[6]
local number, id, head, tail, when = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local last = string.match(redis.call('GET', receipt) or '', '^%d+')
if last and (#last > #number or #last == #number and last >= number)
  or redis.call('HEXISTS', pool, id) == 1 then
  return {'known', now}
end

local due, score = tonumber(when), when
if string.byte(when) == 43 then
  due = now + due
  score = string.format('%d%07d', due / 10000000, due % 10000000)
end
local record = head .. '\173' .. stamp .. tail
if due - now > 1000 then -- the timers look by themselves before that
  redis.call('ZADD', bucket, score, id)
  redis.call('HSET', pool, id, record)
else
  local wake, ring = messages()
  local prefix, topic = string.match(pool, '^(.*):{(.*)}')
  local channel = prefix .. ':control'
  if due > now then
    wake(bucket, due, 1000, channel, topic)
    redis.call('ZADD', bucket, score, id)
  else
    redis.call('RPUSH', ready, id)
  end
  redis.call('HSET', pool, id, record)
  if due <= now then
    ring(idle, channel, topic, 1)
  end
end

local first = redis.pcall('HINCRBY', stats, 'enqueued', '1') == 1
redis.pcall('SET', receipt, number .. ':' .. (first and '+' or '') .. stamp .. ' ', 'PX', '180000')
if first then
  return {'ok', now, '', '', '+'}
end
return now
