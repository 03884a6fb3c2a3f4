-- flow_start: makes replace, which follows it in the same call, start a flow with its last step,
-- the one job of the call.
--
-- KEYS[4]    stats    hash, counter to number
-- KEYS[22]   notes    hash, who waits for jobs, and what their runs have noted (see wait, note)
-- KEYS[23]   parcels  zset, what is on the way to other topics, by target and number
-- KEYS[24]   plans    hash, target to the plan by which its parcels are delivered
-- KEYS[25]   flows    hash, ID of a last step to how far its flow has come
-- KEYS[26]   steps    hash, the steps of flows
-- ARGV[3]    channel  the control channel
-- ARGV[4]    topic    the topic's name, for the control channel
-- ARGV[5..]  jobs     the job of replace; then the name of the flow (8 random bytes) and its flags;
--                     for each step its definition, for how many steps it waits, and its parcel
--                     without the time; and the number of steps
--
-- The other keys and arguments, and the reply, are those of replace. If the last step is not
-- stored, nothing is. Steps that wait for no others start at once: their parcels are stored. At
-- most 1,000 steps and 4 MiB.
-- Cost: O(log N + steps).
-- Then: replace
-- Uses: now receipt stats sizes terms control parcels post link relink flow
do
  local stats, notes, parcels, plans = KEYS[4], KEYS[22], KEYS[23], KEYS[24]
  local flows, steps = KEYS[25], KEYS[26]
  local channel, topic, jobs, first = ARGV[3], ARGV[4], ARGV, 5

  local total, list, last, nonce = tonumber(table.remove(jobs)), {}, jobs[first], nil
  for i = 3 * total, 1, -1 do
    list[i] = table.remove(jobs)
  end
  local flags = table.remove(jobs)
  local name = table.remove(jobs)

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
    local fields, roots = {}, {}
    if before and string.sub(before, 1, 8) ~= name then -- an earlier release has ended it
      roots[1], roots[2] = topic, '5' .. #last .. ':' .. last .. string.sub(before, 1, 8) .. 'e'
    end
    for n = 0, total - 1 do
      local definition, left, row = list[3 * n + 1], list[3 * n + 2], list[3 * n + 3]
      local field = name .. string.format('%08x', n)
      fields[#fields + 1], fields[#fields + 2] = field, definition
      fields[#fields + 1] = field .. 's'
      if left == '0' then
        fields[#fields + 1] = string.format('s %.0f', now)
        roots[#roots + 1], roots[#roots + 2] = read_step(definition).topic, row
      else
        fields[#fields + 1] = 'w ' .. left
        fields[#fields + 1], fields[#fields + 2] = field .. 'r', row
      end
      if #fields > 900 or n == total - 1 then
        redis.call('HSET', steps, unpack(fields))
        fields = {}
      end
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
