-- A counter is written with pcall: it never decides the fate of a job.
local function count(stats, field, n)
  if n > 0 then
    redis.pcall('HINCRBY', stats, field, n)
  end
end

