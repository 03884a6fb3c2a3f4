
-- Gives: expected

-- expected reports whether a job is as its caller knows it: in the state of a letter, and with a
-- score. wanted is such a letter, which the score can follow: when a scheduled job is due, when a
-- dead one was buried, until when a done one is kept. An empty wanted fits every job.
local function expected(wanted, letter, score)
  if wanted == '' then
    return true
  end
  local known = string.sub(wanted, 2)
  return string.sub(wanted, 1, 1) == letter and (known == '' or tonumber(known) == tonumber(score))
end
