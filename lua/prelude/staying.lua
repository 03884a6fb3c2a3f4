
-- staying: a closed place goes on taking the new jobs of the keys that it has jobs of, if the later
-- generation is by key. So all jobs of a key are in one place, and its order and its limits hold
-- for all of them. These keys are in staying, scored by the number of the last pass that has found
-- something of theirs. The score of the empty key is that of the present pass (see part_keys).
-- While the first one goes on, all keys stay. A key that has gone does not come back.
-- Gives: stays

-- stays reports whether new jobs of a key belong to a closed place. zset is its key staying, and
-- pass the score of the empty key there, or nil or false if it has none.
local function stays(zset, pass, key)
  return pass and (tonumber(pass) == 1 or redis.call('ZSCORE', zset, key)) and true or false
end
