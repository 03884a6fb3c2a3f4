
-- spare: leaves jobs out of a call that settles them, for another one.
-- Gives: spare

-- spare takes some jobs (those of which skip has true at their index) out of what rows has
-- returned, and out of the list of their heirs. Their letter is q.
local function spare(all, places, text, skip, heirs_all)
  local some, spots, heirs_some, n = {}, {}, {}, 0
  text = text == '' and string.rep('o', #all) or text
  text = string.gsub(text, 'o', function()
    n = n + 1
    local letter = skip[n] and 'q' or 'o'
    if letter == 'o' then
      some[#some + 1] = all[n]
      spots[#some], heirs_some[#some] = places[n], heirs_all and heirs_all[n]
    end
    return letter
  end)
  return some, spots, text, heirs_some
end
