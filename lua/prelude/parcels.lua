
-- Gives: parcel_front

-- parcel_front returns the text with which all parcels for a target begin.
local function parcel_front(target)
  return string.format('%02x', #target) .. target
end
