
-- burst: what becomes of a job that another one with its ID meets, with the letter l or b (see
-- replace).
-- Gives: own_terms burst
-- Expects: now

-- own_terms parses when such a job is due (see terms). It returns the letter, the due time, the
-- most ms that a burst puts the job off, when the job expires (nil: never), and what follows.
local function own_terms(words)
  local function at(text)
    return string.byte(text) == 43 and now + tonumber(text) or tonumber(text)
  end
  local letter, due, longest, till, rest =
    string.match(words, '^([lb])(%+?%d+)/?(%d*) ?(%+?%d*)(.*)$')
  if letter then
    return letter, math.max(at(due), now), tonumber(longest), till ~= '' and at(till) or nil, rest
  end
end

-- burst returns when a job is due that calls put off, and the reason for its entry in moved. why is
-- the reason that a job with its ID has so far.
local function burst(due, longest, why)
  local first = math.min(tonumber(string.match(why or '', '^debounce:(%d+)') or nil) or now, now)
  local last = first + longest
  return math.max(math.min(due, last), now), string.format('debounce:%.0f-%.0f', first, last)
end
