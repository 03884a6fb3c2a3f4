
-- outcome: how a run has ended a job, for those who wait for it.
-- Gives: outcome_of
-- Expects: now

local tried -- whether there is the key tries; nil: not known yet
local first_run -- what is said of a job whose first run has succeeded

-- outcome_of returns the letter of an outcome, and what follows it. about is the netstring about
-- the run and its output, or empty: then little is known of the run.
local function outcome_of(ending, id, tries, about)
  if ending == 'expired' then
    return 'x', ''
  elseif about ~= '' then
    return 'o', about
  end
  if tried == nil then
    tried = redis.call('EXISTS', tries) == 1
  end
  local before = tried and redis.pcall('HGET', tries, id)
  local attempt = (type(before) == 'string' and tonumber(before) or 0) + 1
  if attempt ~= 1 or not first_run then
    about = string.format('{"attempt":%.0f,"end":%.0f}', attempt, now)
    about = #about .. ':' .. about
    first_run = attempt == 1 and about or first_run
    return 'o', about
  end
  return 'o', first_run
end
