-- watch: reports how long each of some topics has nothing to do, and where a server should take.
-- Writes nothing.
--
-- KEYS[1..]  keys  bucket, leases, slots, handoff, waiting, ready, turn, idle, meta, held, parked,
--                  holders, parcels of each topic
-- ARGV[1]    name  under which the server waits; empty: report only how long
-- ARGV[2..]  list  if there are no KEYS: the same names
--
-- At most 200 topics. With a list, the call goes to one node of a Cluster, and the topics can be of
-- all its slots. A script that declares no keys may read any key of its node, from 6.2 on: Redis
-- compares the slot of each command with those of the node, and not with the slots of the others. A
-- topic of another node is marked m.
--
-- A topic has something to do if the head of bucket, leases, slots, held or parked is due, or a
-- straggler's time is over, or if handoff, waiting or parcels exists. A key of a wrong type counts
-- as something to do: promote or take reports it, and the other topics are not affected. Held,
-- parked, holders and turn are not needed by jobs without a key, so they count as nothing then.
--
-- If Redis accepts no writes, the reply is the error that says so. A master that has become a
-- replica can still be read, and its data can be stale.
--
-- Returns {'ok', now, waits, marks}. waits has for each topic the time to its earliest head in µs,
-- at most 285 years; 0 if there is something to do now, -1 if there is nothing at all. marks has
-- one character for each topic: t if the server should take, because ready or turn exists, or its
-- name is not in idle or soon old enough for prune; p if it should, but the topic is paused; - if
-- it should not; m if the topic is of another node.
-- Cost: O(log N) for each topic.
-- Uses: now lease paused
local keys = KEYS
local name, list, first = ARGV[1], ARGV, 2

if #keys > 0 then
  list, first = keys, 1
end

-- elsewhere reports whether a reply is the error about a key of another node.
local function elsewhere(answer)
  return type(answer) == 'table' and string.find(answer.err, 'non local key', 1, true)
end

-- Prune removes names that are older than an hour. The take of a server that waits for half of that
-- makes its name new, in ms.
local renew_after = 1800000

local endless = '(9999999999999' -- the score of a paused key

-- straggler returns the first straggler of a topic, and until when it counts.
local function straggler(holders)
  local found = redis.pcall('ZRANGEBYLEX', holders, '-', '(' .. string.char(1), 'LIMIT', 0, 1)
  return {found[1], found[1] and tonumber(string.sub(found[1], 3, 19))}
end

local waits, marks, checked = {}, {}, false
for i = first, #list, 13 do
  local bucket, handoff, waiting = list[i], list[i + 3], list[i + 4]
  local ready, turn = list[i + 5], list[i + 6]
  if not checked then
    local written = redis.pcall('ZREM', bucket, '') -- no job has that ID
    checked = not elsewhere(written)
    if checked and type(written) == 'table' and not string.find(written.err, 'WRONGTYPE', 1, true)
    then
      return written
    end
  end
  local wait, mark = -1, '-'
  local held, parked, holders = list[i + 9], list[i + 10], list[i + 11]
  local there = redis.pcall('EXISTS', bucket, list[i + 1], list[i + 2], handoff, waiting, ready,
      turn, held, parked, holders, list[i + 12])
  if elsewhere(there) then
    mark = 'm'
  elseif type(there) == 'table' then
    return there
  else
    if there > 0 and redis.pcall('EXISTS', handoff, waiting, list[i + 12]) ~= 0 then
      wait = 0
    end
    local heads = {bucket, list[i + 1], list[i + 2], held, parked, holders}
    for _, zset in ipairs(there > 0 and heads or {}) do
      local head = {}
      if wait ~= 0 and zset == held then
        head = redis.pcall('ZRANGEBYSCORE', zset, '-inf', endless, 'WITHSCORES', 'LIMIT', 0, 1)
      elseif wait ~= 0 and zset == holders then
        head = straggler(zset)
      elseif wait ~= 0 then
        head = redis.pcall('ZRANGE', zset, 0, 0, 'WITHSCORES')
      end
      if head.err and zset ~= held and zset ~= parked then
        wait = 0
      elseif head[2] and head[1] ~= anchor() then
        local at = zset == parked and math.floor(head[2] * 1000 + 0.5) or math.ceil(head[2]) * 1000
        local left = math.max(0, math.min(at - time[1] * 1000000 - time[2], 9e15))
        if wait < 0 or left < wait then
          wait = left
        end
      end
    end
    local idle, meta = list[i + 7], list[i + 8]
    local since = name == '' or redis.pcall('ZSCORE', idle, name)
    local old = type(since) == 'string' and tonumber(since) < now - renew_after
    if name ~= '' and (not since or old
      or there > 0 and redis.pcall('EXISTS', ready, turn) ~= 0
      and (redis.pcall('EXISTS', ready) ~= 0 or type(redis.pcall('ZCARD', turn)) == 'number')) then
      mark = paused(redis.pcall('HMGET', meta, 'paused', 'until')) and 'p' or 't'
    end
  end
  waits[#waits + 1], marks[#marks + 1] = wait, mark
end
return {'ok', now, waits, table.concat(marks)}
