
-- link: the links of jobs that are members of flows, in notes.
-- Gives: brief news_of reporter
-- Expects: post nudge

-- A link is the nonce of the record, the name of the flow, the number of the step in 8 hexadecimal
-- digits (ffffffff: the last step), a netstring of the home of the flow, and its ID.

-- brief cuts a text to 500 bytes, without a character that is cut.
local function brief(text)
  if #text > 500 then
    text = string.gsub(string.sub(text, 1, 500), '[\194-\244][\128-\191]*$', '')
  end
  return text
end

-- last_message returns the message of the newest entry of an error log.
local function last_message(log)
  local at, entry = 1, ''
  while true do
    local size, start = string.match(log, '^(%d+):()', at)
    if not size then
      break
    end
    at = start + size
    entry = string.sub(log, start, at - 1)
  end
  local fine, read = pcall(cjson.decode, entry)
  local text = fine and type(read) == 'table' and (read.message or read.kind)
  return type(text) == 'string' and brief(text) or ''
end

-- What follows the number in a link: the home of the flow, and the ID as a netstring.
local homes = {}

-- news_of returns the home of a flow and the text of the parcel that says there how a member has
-- ended: the letter of the outcome, and what follows it. stay: it stays dead. It also returns
-- whether the link stays. If a link cannot be read, the home is that of nobody.
local function news_of(link, kind, rest, stay)
  local tail = string.sub(link, 25)
  local one = homes[tail]
  if not one then
    local size, start = string.match(tail, '^(%d+):()')
    local stop = size and start + size or 0
    local id = string.sub(tail, stop)
    one = {string.sub(tail, start or 1, stop - 1), #id .. ':' .. id}
    homes[tail] = one
  end
  if string.sub(link, 17, 24) == 'ffffffff' then
    local stays = kind == 'd' and stay or false
    return one[1], '5' .. one[2] .. string.sub(link, 9, 16) .. (stays and 'd' or 'e'), stays
  end
  return one[1], '3' .. one[2] .. string.sub(link, 9, 24) .. kind
    .. (kind == 'd' and last_message(rest) or rest), false
end

-- reporter returns what tells flows how members have ended, for endings. said is the key notes. The
-- links of IDs that are in silent (nil: none) are deleted, and nothing is said. With pcall: it
-- never decides the fate of a job. A link whose news cannot be stored stays, and prune finds it.
local function reporter(said, to, of_plans, silent)
  local of, news, cut = {}, {}, {}
  of.add = function(id, link, kind, rest, stay)
    local home, text, stays = news_of(link, kind, rest, stay)
    if home ~= '' and not (silent and silent[id]) then
      news[#news + 1], news[#news + 2] = home, text
    end
    cut[#cut + 1] = not stays and 'l' .. id or nil
  end
  of.close = function()
    local fine = #news == 0 or post(to, of_plans, news)
    if fine and #cut > 0 then
      redis.pcall('HDEL', said, unpack(cut))
    end
    if #news > 0 then
      local prefix, of_topic = string.match(said, '^(.-):{(.-)}:')
      local own = prefix .. ':control'
      nudge(own, 'relay', of_topic, 0, '')
    end
  end
  return of
end
