
-- Gives: dig
-- Expects: now room_of

-- dig closes IDs (names), or frees them: see cancel. asked has at the index of an ID for how many
-- ms, and how many tombs the topic may have. said has the letters for the first IDs. One with a c
-- is left alone. It returns what cancel says about the bound.
local function dig(key, names, asked, said)
  local marks, some, room = {}, false, nil
  redis.call('ZREM', key, '') -- after a deletion, the script can write at maxmemory
  for n = 1, #said do
    local ms, most = unpack(asked[n] or {})
    marks[n] = '-'
    if ms and string.sub(said, n, n) ~= 'c' then
      local known = redis.call('ZSCORE', key, names[n])
      if ms == 0 then
        redis.call('ZREM', key, names[n])
      else
        room = room or room_of(key, most, #said)
        if room > 0 or known then
          redis.call('ZADD', key, string.format('%.0f', now + ms), names[n])
          room = room - (known and 0 or 1)
        else
          marks[n], some = 'v', true
        end
      end
    end
  end
  return some and table.concat(marks) or ''
end
