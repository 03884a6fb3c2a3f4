// Package tests has the tests that see the library as a program does: through its exported API,
// with servers, processes, outages, TLS and clusters.
//
// The helpers are in internal/queuetest and internal/redistest. Tests that execute single scripts
// by hand, and tests of unexported names, are in the root package.
//
// A letter from A to O with a number, at the end of a comment, is a case of the table in
// faults/README.md: a failure of other queues that the test shows not to happen here.
package tests
