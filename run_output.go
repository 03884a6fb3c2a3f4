package delayq

import (
	"bytes"
	"sync/atomic"
)

// An attachment holds the output of a run. Copies of its job share it.
type attachment struct {
	held atomic.Pointer[attached] // nil: none yet
}

// An attached is a state of an attachment. It does not change.
type attached struct {
	output []byte
	final  bool // the handler has returned
}

// nothing is the final state without an output.
var nothing = &attached{final: true}

// newAttachment returns the final output of a run that has ended.
func newAttachment(output string) *attachment {
	a := new(attachment)
	a.held.Store(&attached{[]byte(output), true})
	return a
}

func (a *attachment) get() []byte {
	if held := a.held.Load(); held != nil && len(held.output) > 0 {
		return held.output
	}
	return nil
}

// set keeps a copy of an output. It returns false if it is too late.
func (a *attachment) set(output []byte) bool {
	fresh := &attached{output: bytes.Clone(output)}
	for {
		held := a.held.Load()
		if held != nil && held.final {
			return false
		}
		if a.held.CompareAndSwap(held, fresh) {
			return true
		}
	}
}

// end makes the output final and returns it.
func (a *attachment) end() []byte {
	for {
		held, last := a.held.Load(), nothing
		if held != nil {
			last = &attached{held.output, true}
		}
		if a.held.CompareAndSwap(held, last) {
			return a.get()
		}
	}
}
