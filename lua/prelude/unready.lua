
-- Gives: unready_most unready

-- unready removes the entry of a ready job if it is among the first or last thousand of the list.
-- Any other entry stays for take or prune to drop, so the cost does not depend on the length of the
-- list. With pcall: the entry never decides the fate of a job.
-- A call about many jobs removes at most unready_most entries, and leaves the rest of the jobs to
-- another call.
local unready_most = 100
local function unready(ready, id)
  for _, side in ipairs({1, -1}) do
    local at = redis.pcall('LPOS', ready, id, 'RANK', side, 'MAXLEN', 1000)
    if type(at) == 'number' then
      redis.pcall('LREM', ready, side, id)
      return
    end
  end
end
