// Package queuetest has the helpers of the tests that see the library as a program does: those in
// tests/, and those of package delayq_test.
//
// The table in CONTRIBUTING.md says which helper to take for which need.
package queuetest
