
-- Gives: dig
-- Expects: now room_of

-- dig closes IDs (names), or frees them: see cancel. asked has at the index of an ID for how many
-- ms, and how many tombs the topic may have. said has the letters for the first IDs. One with a c
-- is left alone, and one with an a is only freed: the job may be elsewhere. But while some keys
-- stay in a closed place (zset has them), its own can be one of them. It returns what cancel
-- says about the bound. With 0 ms and 0 tombs, an ID is freed only if a job had it.
local function dig(key, names, asked, said, zset)
  local marks, some, room = {}, false, nil
  local takes = string.find(said, 'a', 1, true) and redis.pcall('EXISTS', zset) == 1
  local nobody = string.rep('-', 1025) -- longer than an ID; the empty one closes the topic
  redis.call('ZREM', key, nobody) -- after a deletion, the script can write at maxmemory
  for n = 1, #said do
    local letter, ms, most, any = string.sub(said, n, n), unpack(asked[n] or {})
    marks[n] = '-'
    if ms and letter ~= 'c' and (ms == 0 or letter ~= 'a' or takes and any) then
      if ms > 0 and not room then
        local ended
        room, ended = room_of(key, most, #said)
        redis.call('ZREM', key, nobody, unpack(ended))
      end
      if ms == 0 then
        local frees = most > 0 or not string.find(letter, '[ag]')
        redis.call('ZREM', key, frees and names[n] or nobody)
      elseif redis.call('ZSCORE', key, names[n]) then
        redis.call('ZADD', key, string.format('%.0f', now + ms), names[n])
      elseif room > 0 then
        redis.call('ZADD', key, string.format('%.0f', now + ms), names[n])
        room = room - 1
      else
        marks[n], some = 'v', true
      end
    end
  end
  return some and table.concat(marks) or ''
end
