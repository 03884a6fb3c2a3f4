// Package gateway serves a queue over HTTP and JSON, for programs in any language: they enqueue,
// read, move, cancel and wait for jobs, and take and settle them as consumers. Its manual is
// docs/howto/gateway.md, and openapi.json describes each call.
//
// It is a package of the program and not a library, because it is to be run, not built into
// another program: a Go program has the library itself.
//
// Jobs for consumers come through a Server of the library, so promotion, leases, retries, limits,
// keys and flows are those of any server. The handler of a topic waits until the consumer that has
// got the job settles it, or until its lease ends. The server takes a job only when a consumer asks
// for one. So a lease is known to one process of the gateway: another one answers its token with
// 409, and the job returns when the lease ends. Leases in Redis alone, which every gateway could
// settle, would need a second implementation of what follows a run: backoff, burial, limits, flows
// and the log of errors. Then there would be two of them to keep right.
package gateway
