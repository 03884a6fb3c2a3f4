
-- staying: a closed place goes on taking the new jobs of the keys that it has jobs of, if the later
-- generation is by key. So all jobs of a key are in one place, and its order and its limits hold
-- for all of them. These keys are in staying, scored by the number of the last pass that has found
-- something of theirs. The score of the empty key is that of the present pass (see part_keys).
-- While the first one goes on, all keys stay. A key that has gone does not come back.
-- Gives: stays leaving
-- Expects: has_key key_of

-- stays reports whether new jobs of a key belong to the closed place that has the key staying. pass
-- is the score of the empty key, or nil or false if it has none.
local function stays(staying, pass, key)
  return pass and (tonumber(pass) == 1 or redis.call('ZSCORE', staying, key)) and true or false
end

-- leaving returns three functions, by the key staying of a closed place. What enqueue is told of a
-- record says which key a job has. The first reports whether the job belongs to a later generation:
-- true if its key does not stay, false if it does, or if the job that has its ID here has the same
-- (spot, its place in a lane), and nil if it has none, or if the place is closed to all. The second
-- notes a job that is to be stored, and the third writes which keys those have. It comes first.
local function leaving(staying)
  local pass, known, keys, noted = nil, {}, {}, {}
  local function key_in(head, tail)
    if pass == nil then
      pass = redis.call('ZSCORE', staying, '') or false
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
      known[key] = not stays(staying, pass, key)
    end
    return known[key] and not (spot and key_of(spot) == key)
  end
  local function note(head, tail)
    local key = key_in(head, tail)
    if key and not noted[key] and leaves(head, tail) == false then
      noted[key] = true
      keys[#keys + 1], keys[#keys + 2] = pass, key
    end
  end
  return leaves, note, function()
    if #keys > 0 then
      redis.call('ZADD', staying, unpack(keys))
    end
  end
end
