
-- Gives: missing_of littered wait_most

-- missing_of returns how many more records a topic has than places, or how many more places in
-- bucket and dead than records; 0 in a healthy topic.
local function missing_of(records, delayed, leased, buried, waits, handed, laned)
  local places = delayed + leased + buried + waits + handed + laned
  return math.max(0, records - places, delayed + buried - records)
end

-- littered reports whether ready is far longer than its number of jobs.
local function littered(records, delayed, leased, buried, waits, _, laned)
  return waits > 2 * (records - delayed - leased - buried - laned) + 1000
end

-- A server that waits puts its name into idle again after half of this time: see watch. So names
-- older than this, in ms, are of servers that died.
local wait_most = 3600000
