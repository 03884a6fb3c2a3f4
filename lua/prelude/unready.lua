-- unready removes the entry of a job that was ready, if it is among the first or the last thousand of the list. Anywhere else it stays
-- behind, for take or prune to drop: the cost is the same however many wait. With pcall: it never decides the fate of a job.
local function unready(ready, id)
  for _, side in ipairs({1, -1}) do
    local at = redis.pcall('LPOS', ready, id, 'RANK', side, 'MAXLEN', 1000)
    if type(at) == 'number' then
      redis.pcall('LREM', ready, side, id)
      return
    end
  end
end

