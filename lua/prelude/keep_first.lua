
-- keep_first: keeps jobs the first ones of their keys (see limits).
-- Gives: keep_first
-- Expects: order_of foremost block

-- keep_first makes jobs that leave ready blockers, before all others of their keys, if the jobs of
-- each key run in their order. For dead ones, the limits of the topic must say so too. It reports
-- whether it has.
local function keep_first(keyed, sizes, meta, blockers, ids, dead_ones)
  if redis.call('EXISTS', keyed) == 0 then
    return false
  end
  local ordered, halts = order_of(redis.pcall('HGET', meta, 'flow'))
  if not ordered or dead_ones and not halts then
    return false
  end
  block(blockers, ids, foremost(keyed, sizes, ids))
  return true
end
