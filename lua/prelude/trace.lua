
-- trace: what an edit leaves in moved, so that none is overlooked (see expect).
-- Gives: traced touch
-- Expects: now

-- traced returns the word of a new entry in moved. known is the entry before it. The first entry of
-- a job has the word alone. In later ones, a dot and the time (Unix ms) follow, and each is later
-- than the one before it. So two entries of a job are the same only if they are the same edit.
local function traced(verb, known)
  if not known then
    return verb
  end
  local last = string.match(known, '^%S+ %S*%.(%d+) ') or '0'
  return string.format('%s.%.0f', verb, math.max(now, #last < 14 and last + 1 or 0))
end

-- touch leaves a trace of an edit that keeps the due times of jobs. dues has these times for jobs
-- that have no entry ('': not known, and then there is no trace).
local function touch(moved, ids, dues)
  local known, fields = redis.pcall('HMGET', moved, unpack(ids)), {}
  for i, id in ipairs(known.err and {} or ids) do
    local due, word, tally = string.match(known[i] or '', '^(%d+) (%a%S*) (%d+ %d+ [01])$')
    due, word = due or dues[i], string.match(word or '', '^(.-)%.%d+$') or word or 'same'
    if due ~= '' then
      fields[#fields + 1] = id
      fields[#fields + 1] = due .. ' ' .. traced(word, known[i]) .. ' ' .. (tally or '0 0 0')
    end
  end
  if #fields > 0 then
    redis.call('HSET', moved, unpack(fields))
  end
end
