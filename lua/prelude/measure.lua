
-- Gives: wrong measure

-- measure returns the size of a key by its command, or -1 if the key is of a wrong type. Then it
-- adds the name to wrong, and the caller goes on without the key.
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
