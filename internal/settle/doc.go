// Package settle holds the outcomes of finished runs until Redis has them. internal/serve/settle.go
// sends them.
//
// A Row says how one job ends, and knows its place in the call of a settling script. A Queue keeps
// the rows that Redis has not received yet, and chooses those that travel together. It makes no
// call, and does not decide how a job ends: the root's policies make the rows.
package settle
