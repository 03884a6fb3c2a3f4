
-- Gives: append

-- append adds an entry to a job's error log. The log consists of netstrings, at most eleven: the
-- first one and the newest ten.
local function append(log, entry)
  local starts, at = {}, 1
  log = log or ''
  while at <= #log do
    local size = string.match(string.sub(log, at, at + 9), '^(%d+):')
    if not size then
      break -- not ours: keep the readable part
    end
    starts[#starts + 1] = at
    at = at + #size + 1 + size
  end
  if #starts > 10 then
    log = string.sub(log, 1, starts[2] - 1) .. string.sub(log, starts[3], at - 1)
  end
  return log .. #entry .. ':' .. entry
end
