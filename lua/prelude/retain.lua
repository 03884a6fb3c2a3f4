-- retain adds a completed job to done, with its record and the data of the run. With pcall: a
-- failure does not keep the job from ending.
local function retain(pool, results, done, id, ms, about)
  local record = redis.call('HGET', pool, id)
  if record then
    redis.pcall('HSET', results, id, about .. record)
    redis.pcall('ZADD', done, now + ms, id)
  end
end

