
-- missing_of returns how many more records a topic has than places, or how many more places in
-- bucket and dead than records; 0 in a healthy topic.
local function missing_of(records, delayed, leased, buried, waits, handed)
  local places = delayed + leased + buried + waits + handed
  return math.max(0, records - places, delayed + buried - records)
end

-- littered reports whether ready is far longer than its number of jobs.
local function littered(records, delayed, leased, buried, waits)
  return waits > 2 * (records - delayed - leased - buried) + 1000
end

-- A server waits anew when its name has left idle. So names older than this can go, in ms: most
-- are of servers that died.
local wait_most = 3600000
