-- A caller numbers the calls of a series, upwards. When the reply of a call is lost and the call is sent again, replay finds the number
-- and the script answers as it did the first time. A call with a lower number was given up by its caller and comes late, from a
-- connection that was thought dead: it must do nothing, and nobody waits for its answer.
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

