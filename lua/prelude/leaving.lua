
-- leaving: which of the new jobs of a call must leave a closed place (see staying.lua).
-- Gives: leaving
-- Expects: stays has_key key_of

-- leaving returns three functions about a closed place, whose key staying is zset. What enqueue is
-- told of a record says which key a job has. The first reports whether the job belongs to a later
-- generation: true if its key does not stay, false if it does, or if the job that has its ID here
-- has the same (spot, its place in a lane), and nil if it has none, or if the place is closed to
-- all. The second notes a job that is to be stored. The third writes which keys those have, before
-- they are.
local function leaving(zset)
  local pass, known, keys, noted = nil, {}, {}, {}
  local function key_in(head, tail)
    if pass == nil then
      pass = redis.call('ZSCORE', zset, '') or false
    end
    local record = tail == '' and head
      or pass and head .. string.rep(' ', 14) .. string.sub(tail, 1, 300)
    return pass and has_key(record) and string.sub(record, 28, 27 + string.byte(record, 27))
  end
  local function leaves(head, tail, spot)
    local key = key_in(head, tail)
    if not key then
      return nil
    end
    if known[key] == nil then
      known[key] = not stays(zset, pass, key)
    end
    return known[key] and not (spot and key_of(spot) == key)
  end
  local function keep(head, tail)
    local key = key_in(head, tail)
    if key and not noted[key] and leaves(head, tail) == false then
      noted[key] = true
      keys[#keys + 1], keys[#keys + 2] = pass, key
    end
  end
  return leaves, keep, function()
    if #keys > 0 then
      redis.call('ZADD', zset, unpack(keys))
    end
  end
end
