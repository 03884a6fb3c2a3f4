
-- Gives: register
-- Expects: now

-- register notes in notes that a client waits for the incarnation of a job with a nonce, or that it
-- leaves: without a nonce, all of that job. A registration is written anew when it is 20 s old, and
-- is gone when it is 60 s old. One from the future is as old: the clock was set back. It returns
-- false if eight others wait for the incarnation, or if 64 entries of the job are others. Then it
-- writes the entry of those who are not registered: while it is there, each end of the job leaves
-- an outcome (see prelude/ended.lua). That entry and those of dead jobs have no name and take no
-- place.
local function register(notes, id, nonce, name, leaves)
  local waiters, at = redis.call('HGET', notes, 'w' .. id) or '', 1
  local left, others, all, fresh = '', 0, 0, false
  while true do
    local size, from = string.match(waiters, '^(%d+):()', at)
    if not size then
      break
    end
    at = from + size
    local entry = string.sub(waiters, from, at - 1)
    local age = math.abs(now - (tonumber(string.sub(entry, 9, 21)) or 0))
    local its = string.sub(entry, 1, 8)
    local own = string.sub(entry, 22) == name and (nonce == '' or its == nonce)
    if own and age <= 20000 and not leaves then
      fresh = true
    end
    if age <= 60000 and (not own or fresh) then
      left = left .. #entry .. ':' .. entry
      if not own and #entry > 21 then
        all, others = all + 1, others + (its == nonce and 1 or 0)
      end
    end
  end
  if not leaves and not fresh then
    if name ~= '' and (others >= 8 or all >= 64) then
      register(notes, id, '********', '')
      return false
    end
    local entry = nonce .. string.format('%013.0f', now) .. name
    left = left .. #entry .. ':' .. entry
  end
  if left == waiters then
    return true
  elseif left == '' then
    return redis.call('HDEL', notes, 'w' .. id) == 1
  end
  local written = redis.pcall('HSET', notes, 'w' .. id, left)
  if type(written) == 'table' then
    redis.call('HDEL', notes, '') -- after a deletion, the script can write at maxmemory
    redis.call('HSET', notes, 'w' .. id, left)
  end
  return true
end
