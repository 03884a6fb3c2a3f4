-- A counter is written with pcall: it never decides the fate of a job. Returns what it is then, if that is known.
local function count(stats, field, n)
  if n > 0 then
    return redis.pcall('HINCRBY', stats, field, n)
  end
end

