// Package await lets the callers of a client wait for the ends of jobs. It has the client's
// subscription, sends the calls of the wait script, and tells each waiter what is known of its job.
//
// A Target is an incarnation of a job that somebody waits for: an ID and a nonce. All waiters of a
// client for one incarnation share it, so Redis knows the client, and not its callers. A message
// about the job, a (new) subscription, and otherwise the time make the client look: the look says
// how the job is or has ended, and registers the client for the message about its end. So a message
// that is lost costs time and nothing else.
package await
