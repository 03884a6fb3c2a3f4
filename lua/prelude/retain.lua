-- retain puts a job that ends well among the done, with its record and what is known of the run.
-- With pcall: the job ends all the same.
local function retain(pool, results, done, id, ms, about)
  local record = redis.call('HGET', pool, id)
  if record then
    redis.pcall('HSET', results, id, about .. record)
    redis.pcall('ZADD', done, now + ms, id)
  end
end

