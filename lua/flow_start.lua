-- flow_start: makes replace, which follows it in the same call, start a flow with its last step,
-- the one job of the call.
--
-- KEYS[4]    stats    hash, counter to number
-- KEYS[22]   notes    hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[23]   parcels  zset, what is on the way to other topics, by target and number
-- KEYS[24]   plans    hash, target to the plan by which its parcels are delivered
-- KEYS[26]   flows    hash, ID of a last step to how far its flow has come
-- KEYS[27]   steps    hash, the steps of flows
-- ARGV[3]    channel  the control channel
-- ARGV[4]    topic    the topic's name, for the control channel
-- ARGV[5..]  jobs     the job of replace; then the name of the flow (8 random bytes) and its flags;
--                     for each step its definition, for how many steps it waits, and its parcel
--                     without the time (empty if it waits for none); for each bundle of parcels of
--                     steps that start at once its target and its text without the time; and the
--                     numbers of steps and of bundles
--
-- The other keys and arguments, and the reply, are those of replace. If the last step is not
-- stored, nothing is. Steps that wait for no others start at once: their parcels are stored. At
-- most 1,000 steps and 4 MiB.
-- Cost: O(log N + steps).
-- Then: replace
-- Uses: now receipt stats sizes terms control parcels post link relink flow
do
  local stats, notes, parcels, plans = KEYS[4], KEYS[22], KEYS[23], KEYS[24]
  local flows, steps = KEYS[26], KEYS[27]
  local channel, topic, jobs, first = ARGV[3], ARGV[4], ARGV, 5

  local total, loads = tonumber(jobs[#jobs - 1]), tonumber(jobs[#jobs])
  local list, last, nonce = {}, jobs[first], nil
  local name, flags, base = jobs[first + 4], jobs[first + 5], first + 5
  for i = 1, 3 * total + 2 * loads do
    list[i] = jobs[base + i]
  end
  for i = #jobs, first + 4, -1 do
    jobs[i] = nil
  end

  function replaced.linked(_, record)
    nonce = string.sub(record, 1, 8)
  end
  function replaced.link()
    if not nonce then
      return
    end
    -- A wrong type must cause an error before the first write.
    redis.call('ZCARD', parcels)
    redis.call('HGET', plans, '#')
    local before = redis.call('HGET', flows, last)
    local fields, size, roots, started = {}, 0, {}, string.format('s %.0f', now)
    if before and string.sub(before, 1, 8) ~= name then -- an earlier release has ended it
      roots[1], roots[2] = topic, '5' .. #last .. ':' .. last .. string.sub(before, 1, 8) .. 'e'
    end
    for n = 0, total - 1 do
      local definition, left, row = list[3 * n + 1], list[3 * n + 2], list[3 * n + 3]
      local field = name .. string.format('%08x', n)
      fields[size + 1], fields[size + 2], fields[size + 3] = field, definition, field .. 's'
      if left == '0' then
        fields[size + 4], size = started, size + 4
      else
        fields[size + 4], fields[size + 5], fields[size + 6] = 'w ' .. left, field .. 'r', row
        size = size + 6
      end
      if size > 900 or n == total - 1 then
        redis.call('HSET', steps, unpack(fields))
        fields, size = {}, 0
      end
    end
    for i = 3 * total + 1, 3 * total + 2 * loads do
      roots[#roots + 1] = list[i]
    end
    redis.call('HSET', flows, last, flow_text({name = name, state = 'o', flags = flags,
      total = total, left = total, failed = 0, bytes = 0, started = now, why = '-'}))
    local link = nonce .. name .. 'ffffffff' .. #topic .. ':' .. topic .. last
    relink(notes, parcels, plans, {last, link})
    if #roots > 0 then
      post(parcels, plans, roots)
      nudge(channel, 'relay', topic, 0, '')
    end
    count(stats, 'flows', 1)
  end
end
