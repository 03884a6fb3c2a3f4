-- relink: writes the links of new members of flows.
-- Gives: relink
-- Expects: news_of post

-- relink writes links: IDs and links by turns, each ID once. Of another link of such an ID it tells
-- its flow that the member was replaced: its own end found no link. It returns how many there were.
--
-- Redis keeps a small hash in a compact form, and every access scans the whole of it. A long value
-- makes Redis choose the other form, also when that value is gone. Members of a flow are many, so
-- that a search for their links in the compact form would take most of the time of an ack.
local function relink(notes, parcels, plans, list)
  if #list == 0 then
    return 0
  end
  local fields, puts, news = {}, {}, {}
  for i = 1, #list, 2 do
    fields[#fields + 1] = 'l' .. list[i]
    puts[i], puts[i + 1] = fields[#fields], list[i + 1]
  end
  for i, known in ipairs(redis.call('HMGET', notes, unpack(fields))) do
    if known and string.sub(known, 9) ~= string.sub(list[2 * i], 9) then
      local home, text = news_of(known, 'r', '')
      if home ~= '' then
        news[#news + 1], news[#news + 2] = home, text
      end
    end
  end
  redis.call('HSET', notes, '', string.rep('-', 65), unpack(puts))
  redis.call('HDEL', notes, '')
  if #news > 0 then
    post(parcels, plans, news)
  end
  return #news
end
