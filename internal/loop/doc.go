// Package loop runs the loops of a server on a bounded number of goroutines, and knows which of
// them do not turn.
//
// A Loop is a step that says when it is to be called again. Loops of one kind share a Pool. A Sign
// is the sign of life of a loop, by which a server says that it hangs. It knows no topic and calls
// no Redis: internal/serve gives it the steps.
package loop
