package explain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// ready returns the facts of a ready job that is next, and a server with two workers of which one
// is free.
func ready() *Facts {
	return &Facts{
		ID: "x", At: noon, Job: &Job{State: stateReady, Due: noon.Add(-grace), EnqueuedAt: noon.Add(-time.Hour)},
		Whole: true, Before: -1, Leased: 1, Beat: 5 * time.Second,
		Takers: []Server{{ID: "s1", Host: "h1", SeenAt: noon, Workers: 2, Capacity: 2, Running: 1, Taken: 60, Within: time.Minute}},
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change  func(f *Facts)
		verdict string
		codes   []Code
	}{
		"next": {func(*Facts) {}, "Ready: it is next, and 1 of 2 workers are free.", nil},
		"next, and not taken": {func(f *Facts) {
			f.Job.Due, f.Takers[0].SeenAt = noon.Add(-3*time.Second), noon.Add(-4*time.Second)
		}, "Ready, but not running: it was due at 2026-03-01 11:59:57.000 UTC, 3s ago, nothing is in front of it now, and no server has taken it; " +
			"1 of 2 workers seemed free, and the newest heartbeat, of server s1 of host h1, is 4s old.", []Code{NotTaken}},
		"next, and a cancelled handler occupies the worker": {func(f *Facts) {
			f.Job.Due, f.Takers[0].Running, f.Leased = noon.Add(-3*time.Second), 2, 0
			f.Takers[0].Longest = []Run{{ID: "cancelled", For: time.Minute}}
		}, `Ready, but not running: 2 of 2 workers are busy, the longest of them for 1m with job "cancelled" on server s1 of host h1.`, []Code{AllBusy}},
		"next, and only a gateway has the topic": {func(f *Facts) {
			f.Takers[0].Workers, f.Takers[0].Capacity, f.Takers[0].Running = 0, 0, 3
		}, "Ready: it is next, and the next consumer that asks a gateway for a job gets it.", nil},
		"not taken, and only a gateway has the topic": {func(f *Facts) {
			f.Job.Due, f.Leased, f.Takers[0].Workers, f.Takers[0].Capacity, f.Takers[0].Running = noon.Add(-3*time.Second), 3, 0, 0, 3
		}, "Ready, but not running: it was due at 2026-03-01 11:59:57.000 UTC, 3s ago, nothing is in front of it now, and no consumer has taken it: " +
			"the topic has no workers but the consumers of a gateway, which ask for jobs; the newest heartbeat, of server s1 of host h1, is 0s old.", []Code{NotTaken}},
		"behind, and only a gateway has the topic": {func(f *Facts) {
			f.Ahead, f.Takers[0].Workers, f.Takers[0].Capacity = 4, 0, 0
		}, "Ready, but not running: 4 jobs are in front of it; at 1 jobs/s it starts in about 4s.", []Code{Behind}},
		"just due, and all were busy": {func(f *Facts) { f.Takers[0].Running = 2 }, "Ready: it is next, and 1 of 2 workers are free.", nil},
		"next, and one of two servers was idle": {func(f *Facts) {
			f.Job.Due, f.Takers[0].Running, f.Leased = noon.Add(-3*time.Second), 2, 0
			f.Takers = append(f.Takers, Server{ID: "s2", SeenAt: noon.Add(-time.Second), Workers: 1, Capacity: 1})
		}, "Ready, but not running: it was due at 2026-03-01 11:59:57.000 UTC, 3s ago, nothing is in front of it now, and no server has taken it; " +
			"3 of 3 workers seemed free, and the newest heartbeat, of server s1 of host h1, is 0s old.", []Code{NotTaken}},
		"next, and the limit was reached": {func(f *Facts) {
			f.Job.Due, f.Leased, f.Limits.Running = noon.Add(-3*time.Second), 0, 1
		}, "Ready, but not running: 1 job is running, and the limit of the topic is 1.", []Code{TopicLimit}},
		"without a key, and keys take turns": {func(f *Facts) {
			f.Job.Due, f.Keys = noon.Add(-3*time.Second), 4
		}, "Ready, but not running: 4 keys take turns, with the jobs without a key as one of them; the servers take 1 jobs/s.",
			[]Code{Behind}},
		"one late heartbeat": {func(f *Facts) { f.Takers[0].SeenAt = noon.Add(-11 * time.Second) },
			"Ready: it is next, and 1 of 2 workers are free.", nil},
		"silent": {func(f *Facts) {
			f.Job.Due, f.Ahead, f.Takers[0].SeenAt = noon.Add(-15*time.Second), 3, noon.Add(-12*time.Second)
		}, "Ready, but not running: the only server of the topic has sent no heartbeat lately, and may be dead; " +
			"server s1 of host h1 was last seen at 2026-03-01 11:59:48.000 UTC, 12s ago.", []Code{ServerSilent, Behind}},
		"both silent": {func(f *Facts) {
			f.Job.State, f.Takers[0].SeenAt = stateScheduled, noon.Add(-12*time.Second)
			f.Takers = append(f.Takers, Server{ID: "s2", SeenAt: noon.Add(-20 * time.Second)})
		}, "Due, but not ready: all 2 servers of the topic have sent no heartbeat lately, and may be dead; " +
			"server s1 of host h1 was last seen at 2026-03-01 11:59:48.000 UTC, 12s ago.", []Code{ServerSilent, NotPromoted}},
		"one of two silent": {func(f *Facts) {
			f.Takers = append(f.Takers, Server{ID: "s2", SeenAt: noon.Add(-20 * time.Second)})
		}, "Ready, but not running: 1 of 2 servers of the topic has sent no heartbeat lately, and may be dead; " +
			"server s2 was last seen at 2026-03-01 11:59:40.000 UTC, 20s ago.", []Code{ServerSilent}},
		"not there": {func(f *Facts) { f.Job = nil }, "Not found: no job has this ID; it was never enqueued, has finished, or was cancelled or dropped.",
			[]Code{NotFound}},
		"cancelled": {func(f *Facts) {
			f.Job, f.Acts = nil, []Act{{By: "ann", Action: "cancel", At: noon.Add(-time.Minute), Cancels: true}}
		}, `Not found: "ann" cancelled it at 2026-03-01 11:59:00.000 UTC, 1m ago.`, []Code{Cancelled, NotFound}},
		"due later": {func(f *Facts) { f.Job.State, f.Job.Due = stateScheduled, noon.Add(90*time.Second) },
			"Scheduled: it is due at 2026-03-01 12:01:30.000 UTC, in 1m30s.", []Code{DueLater}},
		"due later, of a plan": {func(f *Facts) {
			f.Job.State, f.Job.Due, f.Job.Stage, f.Job.Stages = stateScheduled, noon.Add(90*time.Second), 2, 4
		}, "Scheduled: stage 2 of 4 is due at 2026-03-01 12:01:30.000 UTC, in 1m30s.", []Code{DueLater}},
		"backing off, of a plan": {func(f *Facts) {
			f.Job.State, f.Job.Due, f.Job.DueReason, f.Job.Attempt, f.Job.Stage, f.Job.Stages = stateScheduled, noon.Add(time.Second), dueRetry, 3, 2, 4
		}, `Scheduled: attempt 2 of stage 2 of 4 failed, and the next one is due at 2026-03-01 12:00:01.000 UTC, in 1s.`, []Code{BackingOff}},
		"backing off": {func(f *Facts) {
			f.Job.State, f.Job.Due, f.Job.DueReason, f.Job.Attempt = stateScheduled, noon.Add(time.Second), dueRetry, 3
			f.Job.LastError = &Failure{At: noon.Add(-2 * time.Second), Kind: "handler_error", Message: "no route"}
		}, `Scheduled: attempt 2 failed 2s ago ("no route"), and the next one is due at 2026-03-01 12:00:01.000 UTC, in 1s.`, []Code{BackingOff}},
		"overdue": {func(f *Facts) {
			f.Job.State, f.Job.Due, f.Rank = stateScheduled, noon.Add(-time.Minute), 2
			f.Takers[0].Promotes, f.Takers[0].PromoteAge = true, 3*time.Second
		}, "Due, but not ready: it was due at 2026-03-01 11:59:00.000 UTC, 1m ago, and no server has made it ready; " +
			"2 jobs are due before it; a server last tried to promote 3s ago.", []Code{NotPromoted}},
		"of a later release, put off": {func(f *Facts) {
			f.Job.State, f.Job.Due, f.Job.DueReason, f.Job.Later = stateScheduled, noon.Add(time.Second), dueSnooze, 3
		}, "Scheduled: a later release of delayq has stored it (format version 3); servers of that release run it, and others put it off.",
			[]Code{LaterRelease, DueLater}},
		"of a later release, snoozed by its handler": {func(f *Facts) {
			f.Job.State, f.Job.Due, f.Job.DueReason, f.Job.Later, f.Job.Snoozes = stateScheduled, noon.Add(time.Second), dueSnooze, 3, 1
		}, "Scheduled: its handler has snoozed it, once, and it is due at 2026-03-01 12:00:01.000 UTC, in 1s.", []Code{Snoozed, LaterRelease}},
		"of a later release, and ready": {func(f *Facts) { f.Job.Later, f.Ahead = 4, 2 },
			"Ready, but not running: 2 jobs are in front of it; at 1 jobs/s it starts in about 2s.", []Code{Behind, LaterRelease}},
		"of a later release, and dead": {func(f *Facts) {
			f.Job.Later, f.Job.State, f.Job.BuriedAt, f.Job.Attempt = 4, stateDead, noon.Add(-time.Second), 1
		},
			"Dead: it was buried at 2026-03-01 11:59:59.000 UTC, 1s ago, after attempt 1, and does not run unless revived.", []Code{Dead}},
		"paused": {func(f *Facts) {
			f.Pauses = []Pause{{By: "ann", Because: "deploy", Since: noon.Add(-time.Hour)}}
		}, `Ready, but not running: the topic is paused by "ann" since 2026-03-01 11:00:00.000 UTC until somebody resumes it ("deploy").`,
			[]Code{TopicPaused}},
		"rate": {func(f *Facts) { f.Limits, f.Next = Limits{Rate: "10 in 1s"}, noon.Add(100*time.Millisecond) },
			"Ready, but not running: the rate of the topic (10 in 1s) allows the next start at 2026-03-01 12:00:00.100 UTC, in 100ms.",
			[]Code{TopicRate}},
		"busy and behind": {func(f *Facts) {
			f.Leased, f.Ahead, f.Takers[0].Longest = 2, 12_400, []Run{{ID: "slow", For: time.Hour}}
		}, "Ready, but not running: 2 of 2 workers are busy, and 12,400 jobs are in front of it; at 1 jobs/s it starts in about 3h26m40s.",
			[]Code{AllBusy, Behind}},
		"pool busy": {func(f *Facts) { f.Takers[0].Pool, f.Takers[0].PoolSize, f.Takers[0].PoolRunning = "p", 4, 4 },
			"Ready, but not running: all 4 workers of the topic's pool are busy, some of them with other topics.", []Code{PoolBusy}},
		"key limit": {func(f *Facts) {
			f.Before, f.Keys, f.Parked, f.KeyRunning, f.Ration = 0, 1, noon, 1, Limits{Running: 1}
		}, "Ready, but not running: 1 job of its key is running, and the limit of the key is 1.", []Code{KeyLimit}},
		"key limit, and the number is unknown": {func(f *Facts) {
			f.Before, f.Keys, f.Parked, f.KeyRunning, f.Ration = 0, 1, noon, -1, Limits{Running: 1}
		}, "Ready, but not running: as many jobs of its key are running as the limit of the key allows, which is 1.", []Code{KeyLimit}},
		"nobody serves": {func(f *Facts) {
			f.Takers, f.Others, f.Redis = nil, 2, map[string]string{"used_memory": "20", "maxmemory": "10"}
		}, "Ready, but not running: Redis is full (20 of 10 bytes) and refuses new jobs and the heartbeats of servers.",
			[]Code{RedisCannotWrite, NoServer}},
		"running": {func(f *Facts) {
			f.Job.State, f.Job.Due, f.Job.LeaseEnd, f.Job.Attempt = stateRunning, noon.Add(-time.Minute), noon.Add(time.Second), 1
			f.Takers[0].Longest = []Run{{ID: "x", For: 10 * time.Second}}
		}, "Running: attempt 1 is running on server s1 of host h1 since 2026-03-01 11:59:50.000 UTC, for 10s; " +
			"its lease lasts until 2026-03-01 12:00:01.000 UTC unless extended.", []Code{Running}},
		"running, with progress": {func(f *Facts) {
			f.Job.State, f.Job.LeaseEnd, f.Job.Attempt = stateRunning, noon.Add(time.Second), 1
			f.Job.Progress, f.Waiters = &Progress{Done: 1040, Total: 2100, Text: "page \"40\"\n", At: noon.Add(-2 * time.Second)}, 3
			f.Job.Steps = []string{"charge", "mail"}
		}, `Running: attempt 1 is running; its lease lasts until 2026-03-01 12:00:01.000 UTC unless extended; ` +
			`its progress is 1,040 of 2,100 ("page \"40\"\n"), 2s ago; steps done: "charge", "mail"; 3 clients wait for it.`, []Code{Running}},
		"next, with progress of no known end": {func(f *Facts) {
			f.Job.Progress, f.Waiters = &Progress{Done: 7, At: noon.Add(-time.Minute)}, 1
		}, "Ready: it is next, and 1 of 2 workers are free; its progress is 7, 1m ago; 1 client waits for it.", nil},
		"dead, with many steps": {func(f *Facts) {
			f.Job.State, f.Job.BuriedAt, f.Job.Attempt = stateDead, noon.Add(-time.Second), 1
			f.Job.Steps = []string{"1", "2", "3", "4", "5", "6", "7"}
		}, "Dead: it was buried at 2026-03-01 11:59:59.000 UTC, 1s ago, after attempt 1, and does not run unless revived; " +
			`7 steps are done, the last 5 of them "3", "4", "5", "6", "7".`, []Code{Dead}},
		"nobody is there, and somebody waits": {func(f *Facts) { f.Job, f.Waiters = nil, 1 },
			"Not found: no job has this ID; it was never enqueued, has finished, or was cancelled or dropped.", []Code{NotFound}},
		"lapsed": {func(f *Facts) { f.Job.State, f.Job.LeaseEnd, f.Job.Attempt = stateRunning, noon.Add(-time.Second), 1 },
			"No longer running: the lease of attempt 1 ended at 2026-03-01 11:59:59.000 UTC, 1s ago, and no server has taken the job back.",
			[]Code{LeaseOver}},
	} {
		t.Run(name, func(t *testing.T) {
			f := ready()
			c.change(f)
			verdict, reasons := f.Explain()
			require.Equal(t, c.verdict, verdict)
			var codes []Code
			for _, r := range reasons {
				codes = append(codes, r.Code)
				require.Regexp(t, `^[A-Z0-9"].*\.$`, r.Text)
			}
			require.Equal(t, c.codes, codes)
		})
	}
}

// A text of the user's is quoted, and cut between two characters.
func TestBrief(t *testing.T) {
	t.Parallel()
	require.Equal(t, `"a\x1b[1m\"b"`, brief("a\x1b[1m\"b"))
	long := ""
	for len(long) <= mostText {
		long += "é"
	}
	require.Equal(t, `"`+long[:mostText]+`…"`, brief(long))
	require.Equal(t, `"x`+long[:mostText-2]+`…"`, brief("x"+long))
}

// A last step waits for the others, and says for which. A step says of which flow it is one.
func TestExplainFlow(t *testing.T) {
	t.Parallel()
	f := ready()
	f.Job.State, f.Job.Due = stateScheduled, noon.Add(time.Hour)
	f.Flow = &Flow{Topic: "album", ID: "7", Last: true, Open: true, Total: 1000, Left: 4, Missing: []Missing{
		{"sign", "sign-7", "running"}, {"archive", "a\n", `ready; topic paused by "ann"`},
	}}
	const deadline = "; the deadline is at 2026-03-01 13:00:00.000 UTC, in 1h."
	verdict, reasons := f.Explain()
	require.Equal(t, `Scheduled: it waits for 4 of 1,000 steps of its flow: "sign/sign-7" (running), "archive/a\n" (ready; topic paused by "ann") and others`+deadline, verdict)
	require.Equal(t, FlowOpen, reasons[0].Code)
	f.Flow = &Flow{Topic: "album", ID: "7", Last: true, Open: true, Group: true}
	verdict, _ = f.Explain()
	require.Equal(t, "Scheduled: it waits for 0 of 0 steps of its flow; the group is open, and others can be added"+deadline, verdict)
	f.Flow.Open = false
	verdict, _ = f.Explain()
	require.Equal(t, "Scheduled: it is due at 2026-03-01 13:00:00.000 UTC, in 1h.", verdict)
	f.Flow = &Flow{Topic: "album", ID: "7", Step: 3}
	verdict, _ = f.Explain()
	require.Equal(t, `Scheduled: it is due at 2026-03-01 13:00:00.000 UTC, in 1h; it is step 3 of the flow "album/7".`, verdict)
}

func TestBriefly(t *testing.T) {
	t.Parallel()
	f := ready()
	require.Equal(t, "ready", f.Brief())
	f.Pauses = []Pause{{By: "ann"}}
	require.Equal(t, `ready; topic paused by "ann"`, f.Brief())
	f.Pauses, f.Job.State, f.Job.LeaseEnd = nil, stateRunning, noon.Add(time.Second)
	require.Equal(t, "running", f.Brief())
	f.Job.State, f.Job.Due, f.Job.DueReason, f.Job.Attempt = stateScheduled, noon.Add(time.Second), dueRetry, 2
	require.Equal(t, "scheduled; backing off", f.Brief())
	f.Job = nil
	require.Equal(t, "on its way", f.Brief())
}

// A verdict says which partition has the job, and which ones close. What is reached in a partition
// is its share, and how soon its jobs start depends on all places that have some.
func TestExplainPartitions(t *testing.T) {
	t.Parallel()
	f := ready()
	f.Part = &Part{Generation: 2, Index: 3, Of: 12, Open: 12, Leased: 1, Waiting: 5, Limit: 24}
	verdict, _ := f.Explain()
	require.Equal(t, "Ready: it is next, and 1 of 2 workers are free; it is in partition 3 of generation 2, which has 12.", verdict)
	f.Ahead = 4
	verdict, reasons := f.Explain()
	require.Equal(t, "Ready, but not running: 4 jobs are in front of it in its partition; at 1 jobs/s of all partitions it starts in about 20s; "+
		"it is in partition 3 of generation 2, which has 12.", verdict)
	require.True(t, reasons[0].Partition)
	f.Limits.Running, f.Leased = 2, 2
	verdict, reasons = f.Explain()
	require.Equal(t, "Ready, but not running: 2 jobs are running in its partition, and its share of the limit of the topic (24) is 2; "+
		"it is in partition 3 of generation 2, which has 12.", verdict)
	require.EqualValues(t, 24, reasons[0].Whole)
	f.Leased, f.Part.Leased = 0, 2 // in other partitions
	_, reasons = f.Explain()
	require.Equal(t, AllBusy, reasons[0].Code)

	f = ready()
	f.Job.State, f.Job.Due = stateScheduled, noon.Add(90*time.Second)
	f.Part = &Part{Generation: 1, Index: 0, Of: 3, Open: 1, Closed: true, Closing: []Closing{
		{Generation: 0, Jobs: 1}, {Generation: 1, Of: 3, Places: 1, Jobs: 18_000}, {Generation: 2, Of: 4}, {Generation: 3, Of: 40, Places: 12, Jobs: 20},
	}}
	verdict, _ = f.Explain()
	require.Equal(t, "Scheduled: it is due at 2026-03-01 12:01:30.000 UTC, in 1m30s; it is in partition 0 of generation 1, which has 3, and new jobs go to 1 partition; "+
		"the topic itself closes, and has 1 job left; generation 1 closes: 1 of its 3 partitions has 18,000 jobs left; generation 2 closes, and has no jobs left; "+
		"generation 3 closes: 12 of its 40 partitions have 20 jobs left.", verdict)
	f.Part = &Part{Open: 12}
	verdict, _ = f.Explain()
	require.Equal(t, "Scheduled: it is due at 2026-03-01 12:01:30.000 UTC, in 1m30s; it is in the topic itself.", verdict)
	f.Job = nil
	verdict, _ = f.Explain()
	require.NotContains(t, verdict, "partition")
}
