-- enqueue_linked: makes replace, which follows it in the same call, store the links of jobs that
-- are steps of flows.
--
-- KEYS[22]   notes    hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[23]   parcels  zset, what is on the way to other topics, by target and number
-- KEYS[24]   plans    hash, target to the plan by which its parcels are delivered
-- ARGV[3]    channel  the control channel
-- ARGV[4]    topic    the topic's name, for the control channel
-- ARGV[5..]  jobs     those of replace; then for each job its link without the nonce (empty: it is
--                     no step), and the number of jobs
--
-- The other keys and arguments, and the reply, are those of replace. A link is written in the step
-- that writes its record. If an ID has the link of another step, that one counts as replaced.
-- Cost: O(jobs × log N).
-- Then: replace
-- Uses: now receipt stats sizes terms control parcels post link relink
do
  local notes, parcels, plans = KEYS[22], KEYS[23], KEYS[24]
  local channel, topic, jobs, first = ARGV[3], ARGV[4], ARGV, 5

  local links, list, total = {}, {}, tonumber(jobs[#jobs])
  jobs[#jobs] = nil
  for i = total, 1, -1 do
    local at = first + 4 * total + i - 1
    links[jobs[first + (i - 1) * 4]], jobs[at] = jobs[at], nil
  end
  function replaced.linked(id, record)
    if links[id] ~= '' then
      list[#list + 1], list[#list + 2] = id, string.sub(record, 1, 8) .. links[id]
    end
  end
  function replaced.link()
    if relink(notes, parcels, plans, list) > 0 then
      nudge(channel, 'relay', topic, 0, '')
    end
  end
end
