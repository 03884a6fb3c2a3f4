-- hand_over_again: makes again, which follows it in the same call, store the jobs that runs hand
-- over.
--
-- KEYS[20]  parcels  zset, jobs that ended runs have handed over, by target and number
-- KEYS[21]  plans    hash, target to the plan by which its parcels are delivered (see parcel_plan)
--
-- The other keys and arguments, and the reply, are those of again. Each job has a seventh value,
-- which is the fourth one of hand_over. It is sent instead of again if a run of the call hands jobs
-- over.
-- Cost: O(jobs × log N).
-- Then: again
-- Uses: now handed parcels hand_over
local parcels, plans = KEYS[20], KEYS[21]

handed.over = hands_over(parcels, plans, 6)
