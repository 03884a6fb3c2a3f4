// Package run holds what is known of a taken job, and which taken jobs belong to a topic of a
// server. The handler is called in internal/serve/worker.go.
//
// A Run lasts from the take of a job until Redis has its outcome. It has the job's record, its
// lease, and the context of its handler, which ends when the job is no longer the server's. Nothing
// here calls Redis, starts a goroutine, or decides what happens to a job: internal/serve does the
// first two, and the root the last.
package run
