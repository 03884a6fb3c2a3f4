
-- failures: notes failed runs (see retry, bury).
-- Gives: failures
-- Expects: failed ran

-- failures notes the runs of jobs that have failed. at is the index, in the values of a row, of the
-- entry for the error log; the entry for runs (empty: none) follows. attempts_of is how many
-- attempts have finished, or nil if the first value of a row says it. Jobs have their new places
-- by then, because neither decides the fate of a job.
local function failures(attempts, errors, runs, jobs, ids, where, at, attempts_of)
  for i, id in ipairs(ids) do
    local entry = where[i] + at - 1
    failed(attempts, errors, id, attempts_of or jobs[where[i]], jobs[entry])
    if jobs[entry + 1] ~= '' then
      ran(runs, id, 1, jobs[entry + 1])
    end
  end
end
