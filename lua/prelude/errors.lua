-- append adds an entry to a job's error log: netstrings, at most eleven of them, the first and the newest ten.
local function append(log, entry)
  local starts, at = {}, 1
  log = log or ''
  while at <= #log do
    local colon = string.find(log, ':', at, true)
    local size = colon and tonumber(string.sub(log, at, colon - 1))
    if not size then
      break -- not ours: keep what can be read
    end
    starts[#starts + 1] = at
    at = colon + size + 1
  end
  if #starts > 10 then
    log = string.sub(log, 1, starts[2] - 1) .. string.sub(log, starts[3], at - 1)
  end
  return log .. #entry .. ':' .. entry
end

