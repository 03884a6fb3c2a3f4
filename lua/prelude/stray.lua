
-- stray: finds links of members of flows that are left over.
-- Gives: stray
-- Expects: successor_of

-- stray reports whether a link is that of no incarnation of its job: an earlier release has ended
-- it. It also returns how many bytes it has read. spent is as of left_over.
local function stray(stored, heirs, id, link, spent)
  local size, entry = redis.call('HSTRLEN', stored, id), redis.pcall('HGET', heirs, id)
  local nonce = string.sub(link, 1, 8)
  if type(entry) == 'table' or size > 0 and spent > 0 and spent + size > 1048576 then
    return false, 0
  end
  local record = size > 0 and redis.call('HGET', stored, id) or ''
  local _, _, heir = successor_of(entry)
  return string.sub(record, 1, 8) ~= nonce and string.sub(heir or '', 1, 8) ~= nonce, size
end
