-- enqueue_later: stores one new job, the plainest that is due later: in bucket.
--
-- KEYS[1]  pool     hash, job ID to record
-- KEYS[2]  bucket   zset, job ID scored by due time (Unix ms)
-- KEYS[3]  stats    hash, counter to number
-- KEYS[4]  sizes    hash, the size of the largest record
-- KEYS[5]  receipt  string, the last call of the series and its reply
-- ARGV[1]  number   number of this call in its series: ten digits, and nothing more
-- ARGV[2]  id       job ID
-- ARGV[3]  record   whole, with the time of enqueueing that the caller has guessed
-- ARGV[4]  at       that time (Unix ms)
-- ARGV[5]  due      when the job is due (Unix ms)
--
-- The job has no key, does not expire before it is due, and replaces none. All numbers of the
-- series have ten digits, so receipts compare as texts. The guess may be 1,000 ms behind Redis's
-- clock and 100 ms ahead of it. If it is not, if the ID has a record, if the job is due already, or
-- if the series has come to this number, the script does nothing: enqueue, sent with the same
-- number, knows what that means.
--
-- A caller alone pays for each key, each word, each command and each value of a reply. So the due
-- time comes as a text, the channel and the topic are read from the name of pool, and the usual
-- reply is a number.
--
-- Returns now: the job is stored; {'ok', now, '', '', '+'}: the same, and it is the topic's first
-- one; or {'known', now}: nothing was done.
-- Cost: O(log N).
local pool, bucket, stats = KEYS[1], KEYS[2], KEYS[3]
local sizes, receipt = KEYS[4], KEYS[5]
local number, id, record, at, due = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local ahead = 100

-- Uses: lone
if due - now <= 1000 then -- the timers look by themselves before that
  if due - now <= 0 then
    return {'known', now}
  end
  -- Uses: control wake
  local prefix, topic = string.match(pool, '^(.*):{(.*)}')
  wake(bucket, due + 0, 1000, prefix .. ':control', topic)
end
if #record > 2000 then
  -- Uses: sizes
  sized(sizes, #record)
end
local before = redis.call('SET', receipt, number .. ':' .. at .. ' ', 'PX', '180000', 'GET')
local placed = (not before or before < number) and redis.pcall('ZADD', bucket, due, id)
-- Uses: lone_end
