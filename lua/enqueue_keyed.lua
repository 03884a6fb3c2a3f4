-- enqueue_keyed: makes enqueue, which follows it in the same call, give jobs that have keys their
-- places in lanes.
--
-- KEYS[3]   ready    list of job IDs, next one at the head
-- KEYS[5]   sizes    hash, the size of the largest record, and the number of the last place
-- KEYS[11]  turn     zset, key of waiting jobs scored by its pass
-- KEYS[12]  lane     zset, place and ID of every ready job that has a key
-- KEYS[13]  keyed    hash, job ID to its place in a lane
-- KEYS[14]  staying  zset, key of a closed place scored by the pass that has found it last
--
-- The other keys and arguments, and the reply, are those of enqueue. It is sent instead of enqueue
-- if a job of the call has a key.
-- Cost: O(jobs × log N).
-- Then: enqueue
-- Uses: now receipt stats sizes terms control ring place rouse key
do
  local ready, sizes, turn, lane, keyed = KEYS[3], KEYS[5], KEYS[11], KEYS[12], KEYS[13]
  local staying = KEYS[14]

  replaced.note = to_lane
  function replaced.leave()
    -- Uses: staying leaving
    return leaving(staying)
  end
  function replaced.enlane()
    return enlane(turn, lane, keyed, sizes, ready)
  end
end

