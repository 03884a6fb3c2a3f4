// Package delayqtest tests programs that use delayq: with no Redis, and with no waiting.
//
// Start gives a test a queue on an embedded Redis and moves its time by hand. A plan of thirty days is over in milliseconds, and
// every job of it has run at the very millisecond it was due:
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
// A unit test of a single handler needs no queue: NewJob makes a job as a handler gets it, with a nonce and a fence, and NextRun the
// next attempt of it. A typed topic makes the rest: NewJob takes what Topic.Job gives.
//
//	job := delayqtest.NewJob(t, delayq.NewJob{Topic: "order:cancel", ID: "order-42"})
//	err := shop.CancelOrder(ctx, job)
//
// Open gives the same to programs that are no tests: examples, demonstrations, a first try without Redis.
//
// # The clock
//
// Redis's clock is the only one that delayq asks, so a test only has to move that. The clock of Start stands still from the
// beginning; only Advance moves it. The clock of Open runs with time.Now until the first Advance, which stops it. Unfreeze lets
// a clock run that has not been moved ahead.
//
// What does not follow Redis's clock goes on in real time: the Timeout of a job and other deadlines of contexts, the waiting inside a
// handler, and time.Now. So a handler takes no time by a clock that stands still, job.Started is job.Due plus the
// microseconds it really took, and a program that computes due times with time.Now and ProcessAt is better given Now.
//
// # In a testing/synctest bubble
//
// In a bubble time.Now itself is a fake clock, and time.Sleep is what moves it. Call Unfreeze right after Start, and Redis, the timers
// of servers and handlers and all contexts live on that one clock; there is no need for Advance, and using it would part
// Redis from the bubble. The price is that nothing is skipped: a server that has nothing to do still looks once in every second
// of fake time, which takes a second or two of real time for every fake hour and topic. For hours and for Timeouts use a bubble,
// for days and weeks Advance.
//
// # Limits
//
// The embedded Redis is miniredis: one process, no persistence, no cluster. What an embedded Redis cannot show, like a failover,
// needs a real one. A miniredis of your own serves delayq too, but in real time: what moves its time by hand is in this package. Dead jobs over the DeadLimit and done jobs over their Retention are removed by the servers every ten seconds of
// Redis's time: Advance does not wait for that.
package delayqtest
