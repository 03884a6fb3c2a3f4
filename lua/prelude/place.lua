
-- Gives: place_rest key_of lane_of lane_range of_record has_key placed_at place_of pass_steps
-- Gives: offer

-- A key is what users call so: jobs can have one, which they share with other jobs (Key in the
-- library). Its lane is the line of its ready jobs, in Redis, in the order in which they are taken.
-- Comments say key for what has limits, a hold or a turn, and lane for that line only.
--
-- A place in a lane has the length of the key in one byte, the key, 11 hexadecimal digits of the
-- due time less the head start (Unix ms), 10 of a number, 8 of the head start plus 2^31, and the
-- nonce of the record. In lane the job ID follows.
local place_rest = 37 -- bytes of a place after its key

-- key_of cuts a place, or an entry of lane, into the key, the place and the ID. It returns nil if
-- that is impossible.
local function key_of(entry)
  local last = 1 + (string.byte(entry) or 256) + place_rest
  if #entry >= last then
    return string.sub(entry, 2, last - place_rest), string.sub(entry, 1, last),
      string.sub(entry, last + 1)
  end
end

-- lane_of returns the text with which all entries of a key in lane begin.
local function lane_of(key)
  return string.char(#key) .. key
end

-- lane_range returns the bounds of all entries of a key, in lane and in holders, as ZRANGEBYLEX has
-- them.
local function lane_range(key)
  local first = lane_of(key)
  return '[' .. first, '(' .. first .. 'g'
end

-- of_record reports whether a place is that of a record.
local function of_record(place, record)
  return string.sub(place, -8) == string.sub(record, 1, 8)
end

-- has_key reports whether a record has a key. Those of an even format version have one: all
-- versions have it in the same place, also those that later releases write.
local function has_key(record)
  local mark, size = string.byte(record, 26, 27) -- a malformed record has no key
  return size ~= nil and string.byte(record, 9) % 2 == 0 and mark == 196
    and string.byte(record, 28 + size) == 210 and #record >= 32 + size
end

-- placed_at returns a place, of the text before the due time, the head start in ms plus 2^31, and
-- the nonce. Most jobs of a call have the same due time and head start, so their texts are kept.
local last_due, last_start, due_text, start_text
local function placed_at(first, due, number, start, nonce)
  if due ~= last_due or start ~= last_start then
    local front = math.max(0, math.min(due - start + 2147483648, 17592186044415))
    last_due, last_start = due, start
    due_text, start_text = string.format('%011x', front), string.format('%08x', start)
  end
  return first .. due_text .. string.format('%010x', number) .. start_text .. nonce
end

-- place_of returns the place of a record with a key, for a due time.
local function place_of(record, due, number)
  local size = string.byte(record, 27)
  local a, b, c, d = string.byte(record, 29 + size, 32 + size)
  local start = ((a * 256 + b) * 256 + c) * 256 + d
  start = start < 2147483648 and start + 2147483648 or start - 2147483648
  return placed_at(string.sub(record, 27, 27 + size), due, number, start, string.sub(record, 1, 8))
end

-- Passes are whole numbers of steps. A pass of half a step more is that of a key that has just
-- joined. Take has to give it its first pass: the scripts that offer turns do not know the weights.
local pass_steps = 262144 -- of one turn of a key without a weight

-- offer gives keys turns. A key that has none joins those that are to be served next. A pass that a
-- key has is kept. back: the turns of these keys had come when something stopped them. They are the
-- next ones.
local function offer(turn, keys, back)
  local head = redis.call('ZRANGE', turn, 0, 0, 'WITHSCORES')
  local lowest = math.floor((tonumber(head[2] or nil) or 0) * pass_steps) / pass_steps
  local pass = 0
  if head[2] and back then
    pass = lowest - 1 / pass_steps
  elseif head[2] then -- half a step gets lost beside a pass that is too high
    pass = lowest < 17179869184 and lowest + 0.5 / pass_steps or lowest + 1
  end
  local turns, text = {back and 'LT' or 'NX'}, string.format('%.17g', pass)
  for i = 1, #keys do
    turns[2 * i], turns[2 * i + 1] = text, keys[i]
  end
  redis.call('ZADD', turn, unpack(turns))
end
