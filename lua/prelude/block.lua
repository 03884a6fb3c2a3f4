
-- Gives: foremost is_foremost block
-- Expects: reseat

-- foremost gives jobs that have keys places before all others of their keys. It returns these
-- places, each at the index of the job.
local function foremost(keyed, sizes, ids)
  local dues = {}
  for i in ipairs(ids) do
    dues[i] = -9007199254740992
  end
  local _, places = reseat(keyed, sizes, ids, dues)
  return places
end

-- is_foremost reports whether a place is one of foremost.
local function is_foremost(place)
  return string.sub(place, -37, -27) == '00000000000'
end

-- block makes jobs with these places blockers: until they are ready, no job of their keys that
-- comes after them is taken.
local function block(blockers, ids, places)
  local entries = {}
  for i, id in ipairs(ids) do
    if places[i] then
      entries[#entries + 1], entries[#entries + 2] = 0, places[i] .. id
    end
  end
  if #entries > 0 then
    redis.call('ZADD', blockers, unpack(entries))
  end
end
