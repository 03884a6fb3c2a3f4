-- flow_cancel: makes cancel, which follows it in the same call, cancel jobs as steps of flows.
--
-- KEYS[22]  notes    hash, who waits for jobs, and what their runs have noted (see wait, note)
-- ARGV[4..]  jobs    those of cancel, and then for each job the name of its flow and its number
--
-- The other keys and arguments, and the reply, are those of cancel. A job that is not this step, or
-- has ended as such, is left alone like one that is not as its caller knows it. The flow is not
-- told of the end: it has asked for it.
-- Cost: O(jobs × log N).
-- Then: cancel
-- Uses: muted
do
  local notes = KEYS[22]
  local jobs, first, width = ARGV, 4, 2

  for i = (#jobs - first + 1) / (width + 1), 1, -1 do
    local at, member = first + (i - 1) * width, table.remove(jobs)
    local link = redis.call('HGET', notes, 'l' .. jobs[at])
    if link and string.sub(link, 9, 24) == member then
      muted[jobs[at]] = true
    else
      jobs[at + 1] = '?' -- fits no job
    end
  end
end
