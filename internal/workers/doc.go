// Package workers decides who may start, and how many jobs to take.
//
// Workers does so for one topic, by the handlers that run, the jobs that wait for them, and how
// long both take. A Pool shares workers among topics. Neither starts a goroutine, calls Redis or
// knows a handler: they count. The topics of internal/serve call them, and guard Workers.
package workers
