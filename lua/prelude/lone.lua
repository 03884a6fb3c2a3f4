
-- lone: begins the call of a job that is sent alone. It leaves the job to enqueue if the guess of
-- its time is wrong, or if its ID has a record. Then the script has done nothing.
-- Gives: now
-- Expects: pool id at ahead

local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000 -- a reply has its whole part
if now - at < -ahead or now - at >= 1001 or redis.call('HEXISTS', pool, id) == 1 then
  return {'known', now}
end
