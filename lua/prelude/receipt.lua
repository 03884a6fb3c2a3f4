-- A caller numbers the calls of a lane. When the reply of a call is lost and the call is sent again, replay finds the
-- number and the script answers as it did the first time. The receipt outlives every retry of the client.
local receipt_ms = 60000

local function replay(receipt, number)
  local kept = redis.call('GET', receipt)
  local head = number .. ':'
  if kept and string.sub(kept, 1, #head) == head then
    return string.sub(kept, #head + 1)
  end
  return nil
end

-- A receipt is written with pcall and last: it never decides the fate of a job.
local function remember(receipt, number, reply)
  redis.pcall('SET', receipt, number .. ':' .. reply, 'PX', receipt_ms)
end

