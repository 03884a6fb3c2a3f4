
-- Gives: count

-- count adds to a counter. It returns the new value, if that is known. With pcall: a counter never
-- decides the fate of a job.
local function count(stats, field, n)
  if n > 0 then
    return redis.pcall('HINCRBY', stats, field, n)
  end
end
