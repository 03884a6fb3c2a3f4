-- A caller numbers the calls of a series, upwards. If the reply to a call is lost and the call is
-- sent again, replay finds the number and the script returns its first reply. A call with a lower
-- number was abandoned by its caller and comes late, from a connection that was considered dead. It
-- must do nothing, and no caller waits for its reply.
local receipt_ms = 180000

local function replay(receipt, number)
  local last, reply = string.match(redis.call('GET', receipt) or '', '^(%d+):(.*)$')
  if last == number then
    return reply
  end
  return last and tonumber(last) > tonumber(number) and '' or nil
end

-- A receipt is written with pcall and last: it never decides the fate of a job.
local function remember(receipt, number, reply)
  redis.pcall('SET', receipt, number .. ':' .. reply, 'PX', receipt_ms)
end

