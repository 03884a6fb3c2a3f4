-- measure asks how large a key is, by its command. -1 if it is of a wrong type: then wrong has its name, and the caller goes on without it.
local wrong = {}
local function measure(command, key)
  local n = redis.pcall(command, key)
  if type(n) ~= 'table' then
    return n
  end
  if not string.find(n.err, 'WRONGTYPE', 1, true) then
    return redis.call(command, key) -- fails again
  end
  wrong[#wrong + 1] = key
  return -1
end

