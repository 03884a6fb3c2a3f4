// Package redistest starts the Redis servers of the project's own tests: embedded, real, replicated, watched by Sentinels,
// clustered.
//
// Real servers are processes of the redis-server binary in PATH, or of the one that the environment variable REDIS_SERVER
// names. They listen on 127.0.0.1 on free ports, keep what they write in directories of their own, and end with the test
// or, if that is cut off, with the process. A test that needs one is skipped where there is no binary, but fails if the
// variable CI is set, so that nothing is skipped there unseen.
//
// With the environment variable DELAYQ_ROLES they have the users of an ACL file, as which the library then makes its calls: see InRoles.
//
// Nothing here but Bubble may be called inside a testing/synctest bubble: a process does not live on a fake clock.
package redistest
