
-- staying: a closed place goes on taking the new jobs of the keys that it has jobs of, if the later
-- generation is by key. So all jobs of a key are in one place, and its order and its limits hold
-- for all of them. These keys are in staying, scored by the number of the last pass that has found
-- something of theirs. The score of the empty key is that of the present pass (see part_keys).
-- While the first one goes on, all keys stay. A key that has gone does not come back.
-- Gives: stays leaving
-- Expects: has_key

-- stays reports whether new jobs of a key belong to the closed place that has the key staying. pass
-- is the score of the empty key, or nil or false if it has none.
local function stays(staying, pass, key)
  return pass and (tonumber(pass) == 1 or redis.call('ZSCORE', staying, key)) and true or false
end

-- leaving returns two functions, by the key staying of a closed place. The first reports whether a
-- job belongs to a later generation, by what enqueue is told of its record: true if its key does
-- not stay, false if it does, and nil if it has none, or if the place is closed to all. The second
-- notes that jobs of the keys that do were stored. It comes before they are.
local function leaving(staying)
  local pass, known, keys = nil, {}, {}
  local function leaves(head, tail)
    if pass == nil then
      pass = redis.call('ZSCORE', staying, '') or false
    end
    local record = tail == '' and head
      or pass and head .. string.rep(' ', 14) .. string.sub(tail, 1, 300)
    if not pass or not has_key(record) then
      return nil
    end
    local key = string.sub(record, 28, 27 + string.byte(record, 27))
    if known[key] == nil then
      known[key] = not stays(staying, pass, key)
      if not known[key] then
        keys[#keys + 1], keys[#keys + 2] = pass, key
      end
    end
    return known[key]
  end
  return leaves, function()
    if #keys > 0 then
      redis.call('ZADD', staying, unpack(keys))
    end
  end
end
