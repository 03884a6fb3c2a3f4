
-- inherit: running jobs that are put back take the records of their successors.
-- Gives: inherit
-- Expects: has_key place_of key_of

-- inherit prepares that: the due times (whens) become those of the successors (list) if these are
-- later, and the jobs get places of their new keys. It comes before what gives the jobs their new
-- places. numbers is the key sizes.
local function inherit(list, all, whens, places, numbers)
  for n, one in ipairs(all) do
    local heir = list[n]
    if heir then
      whens[n] = math.max(whens[n], heir.due)
      local was = redis.call('HGET', places, one)
      if has_key(heir.record) then
        local new = place_of(heir.record, whens[n], redis.call('HINCRBY', numbers, 'number', 1))
        if was and key_of(was) == key_of(new) then -- with the head start that the job has got
          new = string.sub(was, 1, -9) .. string.sub(new, -8)
        end
        redis.call('HSET', places, one, new)
      elseif was then
        redis.call('HDEL', places, one)
      end
    end
  end
end
