
-- Gives: parcel_front parcel_of whole_number open_plan

-- parcel_front returns the text with which all parcels for a target begin.
local function parcel_front(target)
  return string.format('%02x', #target) .. target
end

-- parcel_of returns the target of a parcel, and the time when its run was acked (Unix ms). It
-- returns nothing if the member of parcels is damaged.
local parcel_rule = '^' .. string.rep('[%da-f]', 14) .. string.rep('%d', 13)
local function parcel_of(one)
  local size = string.match(one, '^[%da-f][%da-f]')
  size = size and tonumber(size, 16) or 0
  if size > 0 and string.find(string.sub(one, 3 + size, 29 + size), parcel_rule) then
    return string.sub(one, 3, 2 + size), tonumber(string.sub(one, 17 + size, 29 + size))
  end
end

-- whole_number reads a number that scripts have written. It returns nil if it is not there, or
-- damaged.
local function whole_number(text)
  local n = text and string.find(text, '^%d+$') and tonumber(text)
  return n and n < 9e15 and n or nil
end

-- open_plan reads a plan: its number, its tag and the number of its last parcel. It returns nothing
-- if there is none, or it is damaged.
local function open_plan(text)
  local n, tag, last = string.match(text or '', '^(%d+) (%w+) ([%da-f]+)$')
  if n and whole_number(n) and #last == 14 then
    return n, tag, last
  end
end
