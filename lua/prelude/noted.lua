
-- Gives: note_change

-- note_change counts that an operator has set something in meta, if anybody has begun to divide the
-- topic: see partition.
local function note_change(key)
  if redis.pcall('HEXISTS', key, 'changes') == 1 then
    redis.pcall('HINCRBY', key, 'changes', 1)
  end
end
