
-- end_run: notes runs that Redis itself ends.
-- Gives: end_run
-- Expects: now ran

-- end_run notes in the history of its schedule that a run of a job has ended with an outcome. why
-- is nil, or a short text. With pcall, as ran.
local function end_run(runs, id, attempt, outcome, why)
  local note = {job = id, attempt = attempt, ['end'] = now, outcome = outcome, error = why}
  ran(runs, id, outcome == 'cancelled' and 0 or 1, cjson.encode(note))
end
