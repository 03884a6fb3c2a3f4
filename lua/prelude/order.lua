
-- order: whether the jobs of a key run in their order. The part place has that order, and the parts
-- block and take_rations hold a key back.
-- Gives: order_of

-- order_of reads from the field flow of meta whether the jobs of each key run in their order, and
-- whether a dead one blocks its key. Later releases may write more numbers.
local function order_of(flow)
  local ordered, halts = string.match(type(flow) == 'string' and flow .. ' ' or '',
    '^' .. string.rep('%d+ ', 12) .. '(%d) (%d) ')
  return ordered == '1', halts == '1'
end
