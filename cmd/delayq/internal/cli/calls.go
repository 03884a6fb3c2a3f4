package cli

import (
	"errors"
	"sync"
)

const callers = 64 // calls that are made side by side, and travel together

// side makes n calls, several at a time, and returns their errors.
func side(n int, call func(i int) error) []error {
	errs := make([]error, n)
	var calls sync.WaitGroup
	next := make(chan int)
	for range min(callers, n) {
		calls.Go(func() {
			for i := range next {
				errs[i] = call(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	calls.Wait()
	return errs
}

// orNil makes an error that can be asked about of one that may be nil.
func orNil(err error) error {
	if err == nil {
		return errNone
	}
	return err
}

var errNone = errors.New("")
