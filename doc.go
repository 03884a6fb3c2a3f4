// Package delayq is a delay queue on Redis: a job is enqueued with an ID and a due time, runs when it is due, and can be cancelled or moved
// by its ID until it has ended.
//
// # The model
//
// A topic is a named stream of jobs. A job is a payload (any bytes) with an ID that is unique in its topic. A Client enqueues jobs and
// cancels them; a Server takes due jobs of the topics it has handlers for and runs them. Both are made from a go-redis client, which may be
// one of a single Redis, a Sentinel or a Cluster. Any number of clients and servers, in any number of processes, share a queue.
//
// A job is always in one of these states:
//
//	scheduled   in the bucket, until it is due: for the first time, backing off after a failure, or snoozed
//	ready       due, and waiting for a free slot of a server
//	running     leased to a server, which extends the lease as long as the handler runs
//	dead        buried: it will not run again unless it is revived
//	done        ended well and still on show; only with the option Retention, else it is simply gone
//
// # Use
//
//	client := delayq.NewClient(rdb)
//	job, err := client.Enqueue(ctx, "order:cancel", "order-42", payload, delayq.ProcessIn(30*time.Minute), delayq.Retry(6))
//	state, err := client.Dequeue(ctx, "order:cancel", "order-42") // paid: never mind
//
//	server := delayq.NewServer(rdb, delayq.Concurrency(64))
//	server.HandlerFunc("order:cancel", func(ctx context.Context, job *delayq.Job) error { … })
//	err = server.Run(ctx) // until ctx ends
//
// What a handler returns decides what becomes of the job: see Handler. Job options (ProcessAt, ProcessIn, Retry, Backoff, Timeout, ExpireAt,
// ExpireIn, Retention, Header, Replace) are given to Enqueue, options of clients and servers to NewClient and NewServer.
// Defaults says what counts for jobs that do not say themselves: give each client Defaults(Retry(25), Timeout(time.Hour)), or
// a job that always fails comes back for ever. NewTopic makes a topic whose payloads are Go values. Middleware (Server.Use) wraps all handlers of a server; Hooks are told of everything that happens, for
// metrics and traces. Get, List, Inspect, Topics and Servers look into a queue; Pause, Resume, Revive and Reschedule act on it.
//
// # Schedules
//
// What is to run again and again is a schedule: a name, a rule for its slots (Every, Cron, OnCalendar), a payload and options.
//
//	err = client.Schedule(ctx, "report", "weekly", delayq.Cron("0 9 * * 1", "Europe/Berlin"), payload, delayq.Retry(3), delayq.QueueOne)
//
// It is kept in Redis, and the servers of the topic make one job for each slot, to the millisecond, whatever their number and whichever of them
// dies. An OverlapPolicy says what becomes of a slot while the last run is still going, a MissedPolicy what becomes of those that
// nobody was there for. PauseSchedule, ResumeSchedule, Trigger and Unschedule act on a schedule; Schedules, ScheduleInfo and Runs
// tell of it.
//
// # Guarantees
//
// At least once. A job whose Enqueue returned nil runs to a successful end, or is cancelled, expires, or is buried where a person can see it. A
// crash of a process at any line can make a job run again and loses none. So handlers must be idempotent. What a crash of Redis can lose
// depends on how Redis is set up: see docs/operations.md.
//
// Never early. A handler starts at or after the due time by Redis's clock, to the millisecond. The clocks of clients and servers do
// not matter.
//
// One owner at a time. A running job belongs to one server while its lease holds. A server that lost the lease can no longer settle
// the job, and the context of its handler ends. Job.Fence lets a database of your own refuse late writes as well.
//
// Cancel means cancelled. Dequeue works in every state, costs the same whatever the backlog, and a job that was cancelled before it was
// taken never runs.
//
// Nothing is silent. Every error is returned or logged, and nothing in this package panics or ends the process.
//
// # More
//
// The documents in the repository: README.md for a start, docs/operations.md for whoever runs it, docs/protocol.md for the keys and scripts,
// docs/design.md for the reasons. Package delayqtest tests programs that use delayq without a Redis and without waiting.
package delayq
