-- sized notes how large the largest record is that a call stores, for the scripts that read records: they bound what they read by it.
-- Records of at most 2,000 bytes are not noted. To be called before the records are written. With pcall: it never decides the fate of
-- a job.
local function sized(sizes, bytes)
  if bytes > 2000 then
    local largest = redis.pcall('HGET', sizes, 'largest')
    if type(largest) ~= 'table' and bytes > (tonumber(largest or 0) or 0) then
      redis.pcall('HSET', sizes, 'largest', bytes)
    end
  end
end

