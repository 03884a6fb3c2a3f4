
-- outcome: how a run has ended a job, for those who wait for it.
-- Gives: outcome_of
-- Expects: now

-- outcome_of returns the letter of an outcome, and what follows it. about is the netstring about
-- the run and its output, or empty: then little is known of the run.
local function outcome_of(ending, id, tries, about)
  if ending == 'expired' then
    return 'x', ''
  elseif about ~= '' then
    return 'o', about
  end
  local before = redis.pcall('HGET', tries, id)
  local attempt = (type(before) == 'string' and tonumber(before) or 0) + 1
  about = string.format('{"attempt":%.0f,"end":%.0f}', attempt, now)
  return 'o', #about .. ':' .. about
end
