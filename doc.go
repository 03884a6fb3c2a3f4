// Package delayq is a delay queue on Redis. Enqueue a job with an ID and a due time, and it runs
// when it is due. Until it finishes, you can cancel it by its ID. Until it runs, you can reschedule
// it too.
//
// # The model
//
// A topic is a named stream of jobs. A job is a payload (any bytes) with an ID that is unique in
// its topic. A [Client] enqueues and cancels jobs. A [Server] runs due jobs of the topics it has
// handlers for. Create both from a go-redis client, for a standalone Redis, Sentinel or Cluster.
// Any number of clients and servers, in any number of processes, can share a queue.
//
// A job is always in one of these states:
//
//	scheduled   not due yet: waiting for its first run, for a retry, or after a snooze
//	ready       due, waiting for a free worker of a server
//	running     leased to a server, which extends the lease as long as the handler runs
//	dead        buried: it does not run again unless it is revived
//	done        completed and kept for its Retention; without Retention a completed job is deleted
//
// # Use
//
//	client := delayq.NewClient(rdb)
//	job, err := client.Enqueue(ctx, "order:cancel", "order-42", payload,
//		delayq.ProcessIn(30*time.Minute), delayq.Retry(6))
//	state, err := client.Dequeue(ctx, "order:cancel", "order-42") // paid: cancel the job
//
//	server := delayq.NewServer(rdb, delayq.Concurrency(64))
//	server.HandlerFunc("order:cancel", func(ctx context.Context, job *delayq.Job) error { … })
//	err = server.Run(ctx) // until ctx is cancelled
//
// The value that a handler returns decides what happens to the job: see [Handler]. Job options
// ([ProcessAt], [ProcessIn], [ProcessAtEach], [Retry], [Backoff], [Timeout], [ExpireAt],
// [ExpireIn], [Retention], [Header], [Key], [Priority], [Replace], [UnlessRunning], [ReplaceDead],
// [Debounce], [Latest], [UniqueFor]) are passed to [Client.Enqueue]. Options of clients and servers
// are passed to [NewClient] and [NewServer].
//
// [Defaults] sets options for jobs that do not set them themselves. Give each client
// Defaults(Retry(25), Timeout(time.Hour)): otherwise a job that always fails is retried forever.
//
// [NewTopic] returns a topic whose payloads are Go values. Middleware ([Server.Use]) wraps all
// handlers of a server. [Hooks] receive every event; use them for metrics and tracing.
// An [Inspector] reads the state of a queue, and [Client.Get] reads a job.
// [Client.Pause], [Client.Resume], [Client.Revive] and [Client.Reschedule] change it.
//
// # Schedules
//
// A schedule enqueues jobs repeatedly. It has a name, a rule for its slots ([Every], [Cron] or
// [OnCalendar]), a payload and options.
//
//	err = client.Schedule(ctx, "report", "weekly", delayq.Cron("0 9 * * 1", "Europe/Berlin"),
//		payload, delayq.Retry(3), delayq.OverlapQueueOne)
//
// It is stored in Redis. The servers of the topic enqueue one job for each slot, to the
// millisecond, however many servers there are and whichever of them crash. An [OverlapPolicy]
// decides what happens to a slot that comes up while the previous run is still in progress. A
// [MissedPolicy] decides what happens to slots that passed while no server was running.
// [Client.PauseSchedule], [Client.ResumeSchedule], [Client.Trigger] and [Client.Unschedule] change
// a schedule. [Inspector.Schedules], [Inspector.Schedule] and [Inspector.Runs] read it.
//
// # Flows
//
// A [Flow] is a last step and the steps before it: jobs of any topics that start when others have
// ended. It is sent as a whole, has a deadline, and cannot hang.
//
//	f := delayq.NewFlow("album:done", "album-7", nil).Deadline(time.Hour)
//	for _, image := range images {
//		f.Add("thumbnail", image, delayq.Retry(3))
//	}
//	job, err := client.Start(ctx, f)
//
// [FlowStep.After] makes chains and graphs, and [Client.OpenGroup] makes batches that grow. A step
// reads what it has waited for with [Job.Inputs]. [Inspector.Flow] shows a flow.
//
// # Guarantees
//
// At least once. After Enqueue returns nil, the job completes, is cancelled, expires, or is buried
// where a person can inspect it. A process that crashes at any line can make a job run again, but
// loses none. So handlers must be idempotent. What a crash of Redis can lose depends on the setup
// of Redis: see docs/operations.md.
//
// Never early. A handler starts at or after the due time by Redis's clock, to the millisecond. The
// clocks of clients and servers do not matter.
//
// One owner at a time. A running job belongs to one server while its lease holds. A server that
// loses the lease can no longer settle the job, and the context of its handler is cancelled. With
// [Job.Fence] your own database can refuse late writes too.
//
// Cancel means cancelled. [Client.Dequeue] cancels an unfinished job in any state, at the same cost
// whatever the backlog. A job that is cancelled before it is taken never runs.
//
// Nothing is silent. Every error is returned or logged, and nothing in this package panics or exits
// the process.
//
// # More
//
// In the repository, README.md is for getting started, docs/operations.md for running delayq in
// production, docs/protocol.md for the keys and scripts, and docs/design.md for the reasons.
// Package delayqtest tests programs that use delayq, without a Redis server and without waiting.
package delayq
