-- flow_release: makes reschedule, which follows it in the same call, reschedule the last steps of
-- flows that are complete or have failed.
--
-- KEYS[6]   moved     hash, job ID to its current due time, if it differs from the record's
-- KEYS[15]  attempts  hash, job ID to number of finished attempts
-- KEYS[17]  flows     hash, ID of a last step to how far its flow has come
-- ARGV[5..]  jobs    those of reschedule, and then for each job the name of its flow
--
-- The other keys and arguments, and the reply, are those of reschedule. A job whose flow is not
-- known by that name, or is neither complete nor failed, is left alone like one that is not as its
-- caller knows it. So is a job that has begun, or that was released before. The reason in moved is
-- join.
-- Cost: O(jobs × log N).
-- Then: reschedule
-- Uses: now released flow
do
  local moved, attempts, flows = KEYS[6], KEYS[15], KEYS[17]
  local jobs, first, width = ARGV, 5, 5

  released.why = 'join'
  for i = (#jobs - first + 1) / (width + 1), 1, -1 do
    local at, name = first + (i - 1) * width, table.remove(jobs)
    local flow = read_flow(redis.call('HGET', flows, jobs[at]))
    local why = string.match(redis.call('HGET', moved, jobs[at]) or '', '^%d+ (%S+)')
    local begun = why and why ~= 'reschedule' or redis.call('HEXISTS', attempts, jobs[at]) == 1
    if begun or not flow or flow.name ~= name or not string.find(flow.state, '[rf]') then
      jobs[at + 4] = '?' -- fits no job
    end
  end
end
