-- flow_lost: tells the home of flows what has become of jobs that are their steps. Writes nothing.
--
-- KEYS[1]    notes    hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[2]    parcels  zset, what is on the way to other topics, by target and number
-- ARGV[1]    home     topic of the last steps
-- ARGV[2..]  jobs     for each step: ID, and the name of its flow with its number. At most 500
--
-- Returns {'ok', now, marks}: one letter a step, p if the job is there, u if it is not, and news
-- are on the way to the home. -: neither. Then the step is lost.
-- Cost: O(jobs + log N).
-- Uses: now parcels bound_for
local notes, parcels = KEYS[1], KEYS[2]
local home, jobs, first, width = ARGV[1], ARGV, 2, 2

local news, marks = bound_for(parcels, home), {}
for at = first, #jobs, width do
  local link = redis.call('HGET', notes, 'l' .. jobs[at]) or ''
  local mark = news and 'u' or '-'
  if string.sub(link, 9, 24) == jobs[at + 1] then
    mark = 'p'
  end
  marks[#marks + 1] = mark
end
return {'ok', now, table.concat(marks)}
