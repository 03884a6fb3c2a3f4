
-- Gives: receipt_ms replay remember

-- A caller numbers the calls of a series, upwards. If the reply to a call is lost and the call is
-- sent again, replay finds the number and the script returns its first reply. A call with a lower
-- number was abandoned by its caller and comes late, from a connection that was considered dead. It
-- must do nothing, and no caller waits for its reply.
-- After the number, a slash and ms can say how long the receipt is kept. Default: 3 minutes.
local receipt_ms = 180000

local function replay(receipt, number)
  local own = string.match(number, '^%d+')
  local last, reply = string.match(redis.call('GET', receipt) or '', '^(%d+):(.*)$')
  if last == own then
    return reply
  end
  return last and tonumber(last) > tonumber(own) and '' or nil
end

-- A receipt is written with pcall and last: it never decides the fate of a job.
local function remember(receipt, number, reply)
  local own, kept = string.match(number, '^(%d+)/?(%d*)$')
  kept = kept ~= '' and kept or receipt_ms
  redis.pcall('SET', receipt, own .. ':' .. reply, 'PX', kept)
end
