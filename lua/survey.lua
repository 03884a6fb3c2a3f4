-- survey: finds the topics for which a call of prune is not in vain. Writes nothing.
--
-- KEYS[1..]  keys  pool, bucket, leases, ready, handoff, dead, done, idle, results, lane, tombs,
--                  notes of each topic
-- ARGV[1]    most  most dead jobs to keep
-- ARGV[2]    age   ms, how long a dead job is kept
-- ARGV[3..]  list  if there are no KEYS: the same names
--
-- At most 200 topics. For a list see watch.
--
-- prune has something to do or to report if a dead job is too old or one too many, if a done job is
-- past its retention, if a tomb is over, if there are notes, if there are more or fewer records
-- than places, if ready is far longer than its number of jobs, if a name has been in idle for more
-- than an hour, or if one of these keys is of a wrong type. The keys of prune that are not read
-- here need a prune now and then.
--
-- Returns {'ok', now, marks}: one character for each topic, x if prune has something to do, - if
-- not, m if the topic is of another node.
-- Cost: O(log N) for each topic.
-- Uses: now census
local keys = KEYS
local most, age, list, first = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV, 3

if #keys > 0 then
  list, first = keys, 1
end

-- due reports whether a zset has a score of at most an end. The error about a wrong type counts.
local function due(zset, till)
  return redis.pcall('ZCOUNT', zset, '-inf', till) ~= 0
end

local marks = {}
for i = first, #list, 12 do
  local pool, bucket, leases, ready = list[i], list[i + 1], list[i + 2], list[i + 3]
  local handoff, dead, done = list[i + 4], list[i + 5], list[i + 6]
  local idle, results, lane, tombs = list[i + 7], list[i + 8], list[i + 9], list[i + 10]
  local notes = list[i + 11]
  local mark = '-'
  local there =
    redis.pcall('EXISTS', pool, bucket, leases, ready, handoff, dead, done, results, lane)
  if type(there) == 'table' then
    if not string.find(there.err, 'non local key', 1, true) then
      return there
    end
    mark = 'm'
  elseif due(idle, now - wait_most) or due(tombs, now) or redis.pcall('EXISTS', notes) ~= 0 then
    mark = 'x'
  elseif there > 0 then
    local sizes = {
      redis.pcall('HLEN', pool), redis.pcall('ZCARD', bucket),
      redis.pcall('ZCOUNT', leases, '-inf', 9999999999999), redis.pcall('ZCARD', dead),
      redis.pcall('LLEN', ready), redis.pcall('LLEN', handoff), redis.pcall('ZCARD', lane),
    }
    local readable = type(redis.pcall('HLEN', results)) ~= 'table'
    for _, size in ipairs(sizes) do
      readable = readable and type(size) ~= 'table'
    end
    if not readable or sizes[4] > most or missing_of(unpack(sizes)) > 0 or littered(unpack(sizes))
      or sizes[4] > 0 and due(dead, now - age) or due(done, now) then
      mark = 'x'
    end
  end
  marks[#marks + 1] = mark
end
return {'ok', now, table.concat(marks)}
