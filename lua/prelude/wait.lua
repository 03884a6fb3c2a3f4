
-- Gives: register
-- Expects: now

-- register notes in notes that a client waits for the incarnation of a job with a nonce, or that it
-- leaves: without a nonce, all of that job. A registration is written anew when it is 20 s old, and
-- is gone when it is 60 s old. One from the future is as old: the clock was set back. It returns
-- false if eight others wait, or if Redis has no memory left.
local function register(notes, id, nonce, name, leaves)
  local waiters, at = redis.call('HGET', notes, 'w' .. id) or '', 1
  local left, others, fresh = '', 0, false
  while true do
    local size, from = string.match(waiters, '^(%d+):()', at)
    if not size then
      break
    end
    at = from + size
    local entry = string.sub(waiters, from, at - 1)
    local age = math.abs(now - (tonumber(string.sub(entry, 9, 21)) or 0))
    local own = string.sub(entry, 22) == name
      and (nonce == '' or string.sub(entry, 1, 8) == nonce)
    if own and age <= 20000 and not leaves then
      fresh = true
    end
    if age <= 60000 and (not own or fresh) then
      left = left .. #entry .. ':' .. entry
      others = others + ((own or #entry == 21) and 0 or 1) -- without a name: see prelude/ended.lua
    end
  end
  if not leaves and not fresh then
    if others >= 8 then
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
  if type(written) ~= 'table' then
    return true
  end
  return not string.find(written.err, 'OOM', 1, true) and redis.call('HSET', notes, 'w' .. id, left)
end
