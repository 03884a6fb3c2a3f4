-- flow_look: lists flows, so that servers find those that have lost something. Writes nothing.
--
-- KEYS[1]  flows   hash, ID of a last step to how far its flow has come
-- KEYS[2]  pool    hash, job ID to record
-- ARGV[1]  cursor  where the page begins, 0 for the beginning
--
-- Returns {'ok', now, cursor, ids, names, marks}: the next cursor, 0 at the end, and of each flow
-- of the page its ID, its name and a letter: its state, or g if it has no last step. An entry of
-- flows that cannot be read is left out. A page has about a hundred flows, of a small hash all.
-- Cost: O(flows).
-- Uses: now flow
local flows, pool, cursor = KEYS[1], KEYS[2], ARGV[1]

local page = redis.call('HSCAN', flows, cursor, 'COUNT', 100)
local ids, names, marks = {}, {}, {}
for i = 1, #page[2], 2 do
  local flow = read_flow(page[2][i + 1])
  if flow then
    local n, there = #ids + 1, redis.call('HEXISTS', pool, page[2][i]) == 1
    local mark = there and flow.state or 'g'
    ids[n], names[n], marks[n] = page[2][i], flow.name, mark
  end
end
return {'ok', now, page[1], ids, names, table.concat(marks)}
