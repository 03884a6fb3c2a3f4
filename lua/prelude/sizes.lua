
-- Gives: sized

-- sized notes the size of the largest record that a call stores. Scripts that read records limit
-- their reading by it. Records of at most 2,000 bytes are not noted. It must be called before the
-- records are written. With pcall: the size never decides the fate of a job.
local function sized(sizes, bytes)
  if bytes > 2000 then
    local largest = redis.pcall('HGET', sizes, 'largest')
    if type(largest) ~= 'table' and bytes > (tonumber(largest or 0) or 0) then
      redis.pcall('HSET', sizes, 'largest', bytes)
    end
  end
end
