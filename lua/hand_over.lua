-- hand_over: makes ack, which follows it in the same call, store the jobs that runs hand over.
--
-- KEYS[14]  parcels  zset, jobs that ended runs have handed over, by target and number
-- KEYS[15]  plans    hash, target to the plan by which its parcels are delivered (see parcel_plan)
--
-- The other keys and arguments, and the reply, are those of ack. Each job has a fourth value: for
-- each job that its run hands over, a netstring of the target and one of the job (see Parcels in
-- docs/protocol.md). Of a job that is lost, gone or left alone nothing is stored. It is sent
-- instead of ack if a run of the call hands jobs over. Send no more than about 1 MiB of them,
-- beyond those of the first job.
-- Cost: O(jobs × log N).
-- Then: ack
-- Uses: now handed parcels hand_over
local parcels, plans = KEYS[14], KEYS[15]

handed.over = hands_over(parcels, plans, 3)
