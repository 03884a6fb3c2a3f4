// Package settle has what Redis is to be told of runs that have ended.
//
// A Row says how one job ends, and knows its place in the call of a settling script. A Queue keeps
// the rows that Redis has not received yet, and chooses those that travel together. It makes no
// call, and does not decide how a job ends: the root's policies make the rows, and internal/serve
// sends them.
package settle
