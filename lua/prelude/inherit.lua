
-- inherit: running jobs that are put back take the records of their successors.
-- Gives: inherit
-- Expects: has_key place_of key_of

-- inherit prepares that: dues become those of the successors if these are later, and the jobs get
-- places of their new keys. It comes before what gives the jobs their new places.
local function inherit(heirs, ids, dues, keyed, sizes)
  for i, id in ipairs(ids) do
    local heir = heirs[i]
    if heir then
      dues[i] = math.max(dues[i], heir.due)
      local old = redis.call('HGET', keyed, id)
      if has_key(heir.record) then
        local number = redis.call('HINCRBY', sizes, 'number', 1)
        local new = place_of(heir.record, dues[i], number)
        if old and key_of(old) == key_of(new) then -- with the head start that the job has got
          new = string.sub(old, 1, -9) .. string.sub(new, -8)
        end
        redis.call('HSET', keyed, id, new)
      elseif old then
        redis.call('HDEL', keyed, id)
      end
    end
  end
end
