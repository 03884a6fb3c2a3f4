package run

import (
	"bytes"
	"sync/atomic"
)

// An Output holds the output of a run. Copies of its job share it.
type Output struct {
	held atomic.Pointer[attached] // nil: none yet
}

// An attached is a state of an Output. It does not change.
type attached struct {
	output []byte
	final  bool // the handler has returned
}

// nothing is the final state without an output.
var nothing = &attached{final: true}

// FinalOutput returns the final output of a run that has ended.
func FinalOutput(output string) *Output {
	o := new(Output)
	o.held.Store(&attached{[]byte(output), true})
	return o
}

// Get returns the output, or nil if there is none. The caller must not change it.
func (o *Output) Get() []byte {
	if held := o.held.Load(); held != nil && len(held.output) > 0 {
		return held.output
	}
	return nil
}

// Set keeps a copy of an output. It returns false if it is too late.
func (o *Output) Set(output []byte) bool {
	fresh := &attached{output: bytes.Clone(output)}
	for {
		held := o.held.Load()
		if held != nil && held.final {
			return false
		}
		if o.held.CompareAndSwap(held, fresh) {
			return true
		}
	}
}

// End makes the output final and returns it.
func (o *Output) End() []byte {
	for {
		held, last := o.held.Load(), nothing
		if held != nil {
			last = &attached{held.output, true}
		}
		if o.held.CompareAndSwap(held, last) {
			return o.Get()
		}
	}
}
