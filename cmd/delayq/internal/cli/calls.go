package cli

import (
	"context"
	"errors"
	"fmt"
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

// inTurn acts on things one after the other, and writes a row about each. do acts on the thing of a
// name, and returns its row. inTurn ends early if Redis cannot be reached or refuses the act, or if
// ctx is done. noun is what the things are called.
func inTurn[R interface{ ended(problem string) }](
	ctx context.Context, p *printer[R], noun string, names []string, do func(name string) (R, error),
) error {
	var sum tally
	stopped := func(err error) error {
		_ = p.end(nil) // err is the one to report
		return fmt.Errorf("after %s: %w", count(sum.done, noun), err)
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return stopped(err)
		}
		r, err := do(name)
		err = p.a.acted(err)
		if err != nil && (unreachable(err) || refused(err) || ctx.Err() != nil) {
			// An interruption is told without its cause, so what it has left is told here.
			if text := errorText(bare(err)); ctx.Err() != nil && text != context.Canceled.Error() {
				p.a.say("%s: %s", idText(name), text)
			}
			return stopped(err)
		}
		sum.add(err)
		problem := errorText(bare(err))
		if r.ended(problem); problem != "" && !p.a.tabular() {
			p.a.say("%s: %s", idText(name), problem)
		}
		if problem != "" && p.a.format == formatID {
			continue
		}
		if err := p.row(r); err != nil {
			return err
		}
	}
	if err := p.end(nil); err != nil {
		return err
	}
	return sum.result()
}
