-- terms reads when a job that is to be stored is due: Unix ms, or + and a delay in ms. Before that may stand r, for a job that any of its
-- id gives way to, or d, for one that only a dead one does; behind it, after a space, when it expires, in the same form. Returns the due
-- time, whether the job could never run because it expires by then, and that letter.
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

-- namesakes looks up which ids have a record. For each it gives false if there is none, a string that begins with the nonce if it may be
-- the record of this very call, and else any other string. No payload is read but where all of them together are small, or where a
-- record is as long as that of the call: then reading it costs no more than sending it has.
local function namesakes(pool, sizes, ids, jobs, first, width)
  local largest = #ids > 3 and redis.pcall('HGET', sizes, 'largest')
  if #ids > 3 and type(largest) ~= 'table' and #ids * (tonumber(largest or 2000) or 1048577) <= 1048576 then
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

-- What replace leaves to enqueue: live, what namesakes has found and still is there, and placed, which ids have a place in ready.
local replaced = {}

