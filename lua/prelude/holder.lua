
-- Gives: holder_of held_by till_of unhold
-- Expects: lane_of key_of

-- holder_of returns the entry in holders of a running job whose key has a limit. The entries of a
-- key are those of its lane_range.
local function holder_of(key, id)
  return lane_of(key) .. '0' .. id
end

-- held_by returns the ID of an entry in holders of a key.
local function held_by(key, entry)
  return string.sub(entry, #key + 3)
end

-- till_of returns until when an entry in holders of a key counts that is a straggler's, and nil for
-- any other. Those of the empty key are all stragglers of the topic.
local function till_of(key, entry)
  return string.sub(entry, #key + 2, #key + 2) == '1'
    and tonumber(string.sub(entry, #key + 3, #key + 19)) or nil
end

-- unhold frees the places that jobs have in the limits of their keys.
local function unhold(holders, keyed, ids)
  if redis.call('EXISTS', holders) == 0 then
    return
  end
  local places, ended = redis.call('HMGET', keyed, unpack(ids)), {}
  for i, id in ipairs(ids) do
    local key = places[i] and key_of(places[i])
    if key then
      ended[#ended + 1] = holder_of(key, id)
    end
  end
  if #ended > 0 then
    redis.call('ZREM', holders, unpack(ended))
  end
end
