-- enqueue_now: stores one new job, the plainest that is due now: at the tail of ready.
--
-- KEYS[1]  pool     hash, job ID to record
-- KEYS[2]  ready    list of job IDs, next one at the head
-- KEYS[3]  stats    hash, counter to number
-- KEYS[4]  sizes    hash, the size of the largest record
-- KEYS[5]  receipt  string, the last call of the series and its reply
-- KEYS[6]  idle     zset, waiting server scored by the time its wait began (Unix ms)
-- ARGV[1]  number   number of this call in its series: ten digits, and nothing more
-- ARGV[2]  id       job ID
-- ARGV[3]  record   whole, with the time of enqueueing that the caller has guessed
-- ARGV[4]  at       that time (Unix ms)
--
-- The same as enqueue_later for a job that is due when it is enqueued. The guess must not be ahead.
--
-- Returns the same as enqueue_later.
-- Cost: O(log N).
local pool, ready, stats = KEYS[1], KEYS[2], KEYS[3]
local sizes, receipt, idle = KEYS[4], KEYS[5], KEYS[6]
local number, id, record, at = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local ahead = 0

-- Uses: lone
if #record > 2000 then
  -- Uses: sizes
  sized(sizes, #record)
end
local before = redis.call('SET', receipt, number .. ':' .. at .. ' ', 'PX', '180000', 'GET')
local placed = (not before or before < number) and redis.pcall('RPUSH', ready, id)
if type(placed) == 'number' and redis.pcall('ZCARD', idle) ~= 0 then
  -- Uses: control ring
  local prefix, topic = string.match(pool, '^(.*):{(.*)}')
  ring(idle, prefix .. ':control', topic, 1)
end
-- Uses: lone_end
