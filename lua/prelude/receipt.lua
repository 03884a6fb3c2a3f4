
-- Gives: receipt_ms replay remember

-- A caller numbers the calls of a series, upwards. If the reply to a call is lost and the call is
-- sent again, replay finds the number and the script returns its first reply. A call with a lower
-- number was abandoned by its caller and comes late, from a connection that was considered dead, or
-- two callers use one series. It must do nothing, and its reply is the error PASSED.
-- After the number, a slash and ms can say how long the receipt is kept. Default: 3 minutes. After
-- another slash, a tag can say what the call is about. The same number with another tag is another
-- call, which comes too late too.
--
-- With a time, replay also writes the receipt anew: it is kept from now on, and a WAIT that follows
-- covers this write, so the first call too. If Redis refuses that, nobody may take the reply for
-- confirmed, and the error is UNCONFIRMED. DEL comes first, because Redis does not refuse it for
-- lack of memory, and after it no write.
local receipt_ms = '180000' -- a text, because a number costs Redis a fifth of the command more

local function replay(receipt, number)
  local own, kept, tag = string.match(number, '^(%d+)/?(%d*)/?(%w*)$')
  local text = redis.call('GET', receipt) or ''
  local last, about, reply = string.match(text, '^(%d+)/?(%w*):(.*)$')
  if last == own and about == tag then
    if kept ~= '' then
      local dropped = redis.pcall('DEL', receipt)
      if type(dropped) == 'table' then
        error('UNCONFIRMED ' .. dropped.err, 0)
      end
      redis.call('SET', receipt, text, 'PX', kept)
    end
    return reply
  end
  if last and (last == own or tonumber(last) > tonumber(own)) then
    error('PASSED the series of this call has come to ' .. last, 0)
  end
  return nil
end

-- A receipt is written with pcall and last: it never decides the fate of a job.
local function remember(receipt, number, reply)
  local own, kept, tag = string.match(number, '^(%d+)/?(%d*)(/?%w*)$')
  kept = kept ~= '' and kept or receipt_ms
  redis.pcall('SET', receipt, own .. tag .. ':' .. reply, 'PX', kept)
end
