
-- relink: writes the links of new members of flows.
-- Gives: relink
-- Expects: news_of post

-- relink writes links: IDs and links by turns. Of another link of such an ID it tells its flow that
-- the member was replaced: its own end found no link.
local function relink(notes, parcels, plans, list)
  local news = {}
  for i = 1, #list, 2 do
    local known = redis.call('HGET', notes, 'l' .. list[i])
    if known and string.sub(known, 9) ~= string.sub(list[i + 1], 9) then
      local home, text = news_of(known, 'r', '')
      if home ~= '' then
        news[#news + 1], news[#news + 2] = home, text
      end
    end
    redis.call('HSET', notes, 'l' .. list[i], list[i + 1])
  end
  if #news > 0 then
    post(parcels, plans, news)
  end
  return #news
end
