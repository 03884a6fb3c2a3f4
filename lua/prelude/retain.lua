
-- Gives: retain
-- Expects: now

-- retain adds a completed job to done, with its record between the netstring about the run and the
-- output that follows that in about. With pcall: a failure does not keep the job from ending.
local function retain(pool, results, done, id, ms, about)
  local record = redis.call('HGET', pool, id)
  if record then
    local size = string.match(about, '^%d+:{"output":(%d+)')
    if size then
      local border = #about - tonumber(size)
      record = record .. string.sub(about, border + 1)
      about = string.sub(about, 1, border)
    end
    redis.pcall('HSET', results, id, about .. record)
    redis.pcall('ZADD', done, now + ms, id)
  end
end
