
-- Gives: owns

-- owns reports whether a lease that ends at score (a string, or false if there is none) is the one
-- that fence names. A fence is one lease end, or several separated by spaces while extensions are
-- unconfirmed. Ends are compared as numbers, because releases of Redis write different numbers of
-- digits.
local function owns(score, fence)
  if not score or score == fence then
    return score ~= false
  end
  for lease_end in string.gmatch(fence, '%S+') do
    if tonumber(lease_end) == tonumber(score) then
      return true
    end
  end
  return false
end
