// Package redistest starts the Redis servers of the project's own tests: embedded, real,
// replicated, watched by Sentinels, clustered.
//
// Real servers are processes of the redis-server binary in PATH, or of the binary that the
// environment variable REDIS_SERVER names. They listen on 127.0.0.1 on free ports and write to
// their own directories. They end with the test or, if it is interrupted, with the process. Without
// a binary, a test that needs one is skipped. If the variable CI is set, the test fails instead, so
// that nothing is skipped unnoticed in CI.
//
// With the environment variable DELAYQ_ROLES they have the users of an ACL file, and the library
// makes its calls as these users: see InRoles.
//
// Inside a testing/synctest bubble call nothing but Bubble, because a process does not follow a
// fake clock.
package redistest
