// Package delayqtest tests programs that use delayq, without a Redis server and without waiting.
//
// [Start] gives a test a queue on an embedded Redis whose time the test controls. A plan of thirty
// days is over in milliseconds, and every job of it has run at the very millisecond it was due:
//
//	func TestUnpaidOrderIsCancelled(t *testing.T) {
//		q := delayqtest.Start(t)
//		q.Serve(shop.Register) // func(*delayq.Server): the program's own handlers
//
//		shop.PlaceOrder(ctx, q.Client, "order-42")
//		q.AssertScheduled("order:cancel", "order-42", q.Now().Add(30*time.Minute))
//
//		q.Advance(30 * time.Minute)
//		q.AssertNone("order:cancel")
//	}
//
// A unit test of a single handler needs no queue. [NewJob] returns a job as a handler receives it,
// with a nonce and a fence, and [NextRun] returns its next attempt. NewJob accepts the result of
// [delayq.Topic.Job] too.
//
//	job := delayqtest.NewJob(t, delayq.NewJob{Topic: "order:cancel", ID: "order-42"})
//	err := shop.CancelOrder(ctx, job)
//	delayqtest.AssertThen(t, job, "order:refund", "order-42")
//
// [Open] gives the same to programs that are not tests: examples, demonstrations, a first try
// without Redis.
//
// # The clock
//
// Redis's clock is the only one that delayq reads, so a test only has to move that. The clock of
// Start stands still from the beginning; only Advance moves it. The clock of Open runs with
// time.Now until the first Advance, which stops it. Unfreeze restarts a clock that has not been
// moved ahead.
//
// Everything that does not follow Redis's clock continues in real time: the Timeout of a job and
// other deadlines of contexts, waiting inside a handler, and time.Now. So a handler takes no time
// by a clock that stands still. [delayq.Job.Started] is its Due plus the microseconds that really
// passed. A program that computes due times with time.Now and ProcessAt should use Now instead.
//
// [delayq.Client.Wait] and [delayq.Client.Call] wait in real time too. A Call of a job that is due
// returns when a server of Serve has run it. For a later job, make the call in a goroutine of its
// own and call Advance: a wait does not end because Redis's clock has moved far.
//
// # In a testing/synctest bubble
//
// In a bubble time.Now itself is a fake clock, and time.Sleep moves it. Call Unfreeze right after
// Start. Then Redis, the timers of servers and handlers, and all contexts share that one clock.
// Advance is not needed there, and would separate Redis's clock from that of the bubble. The price
// is that nothing is skipped: an idle server still looks once in every second of fake time. That
// takes a second or two of real time for every fake hour and topic. For hours and for Timeouts use
// a bubble, for days and weeks Advance.
//
// # Limits
//
// The embedded Redis is miniredis: one process, no persistence, no cluster. Situations that it
// cannot show, like a failover, need a real Redis. [delayq.Client.Partition] divides a topic here
// too, so a test can show what a program does with partitions. A miniredis of your own works with
// delayq too, but in real time, because only this package moves its time.
package delayqtest
