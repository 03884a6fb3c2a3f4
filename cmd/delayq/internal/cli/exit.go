package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
)

// The exit codes. docs/cli.md lists them.
const (
	exitDone        = 0
	exitError       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 4
	exitPartly      = 5
	exitUnreachable = 6
	exitRefused     = 7
	exitConfig      = 78 // EX_CONFIG of sysexits.h
	exitInterrupted = 130
)

// An exitCode is an error with an exit code of its own. Its text is empty if everything has been
// said already.
type exitCode struct {
	code int
	text string
}

func (e *exitCode) Error() string { return e.text }

// usage returns an error about the command line.
func usage(format string, args ...any) error {
	return &exitCode{exitUsage, fmt.Sprintf(format, args...)}
}

// badFile returns an error about a file that a program which runs for ever is started with. Its
// code is not that of a crash, which is 2 in Go: a supervisor restarts the one and not the other.
func badFile(format string, args ...any) error {
	return &exitCode{exitConfig, fmt.Sprintf(format, args...)}
}

// unrecorded splits the error of an act into what has failed, and what says that the act is done
// and not in the audit.
func unrecorded(err error) (failed, silent error) {
	if !errors.Is(err, delayq.ErrNotAudited) {
		return err, nil
	}
	var list []error
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		list = many.Unwrap()
	}
	if len(list) == 0 || slices.Contains(list, delayq.ErrNotAudited) { // beside its cause
		return nil, err
	}
	var rest, about []error
	for _, one := range list {
		if errors.Is(one, delayq.ErrNotAudited) {
			about = append(about, one)
		} else {
			rest = append(rest, one)
		}
	}
	return errors.Join(rest...), errors.Join(about...)
}

// ended returns the error of a command that has ended with err. It says which acts are done and not
// in the audit.
func (a *app) ended(err error) error {
	if err = a.acted(err); a.silences == 0 {
		return err
	}
	text := errorText(a.silent)
	if a.silences > 1 {
		text += fmt.Sprintf("; %s more not recorded", number(a.silences-1))
	}
	a.say("error: %s", text)
	if err == nil {
		return &exitCode{code: exitPartly}
	}
	return err
}

// report writes an error to stderr and returns its exit code.
func (a *app) report(ctx context.Context, err error) int {
	code := codeOf(err)
	if ctx.Err() != nil && err != nil {
		code = exitInterrupted
	}
	switch text := errorText(err); {
	case err == nil || text == "" || errors.Is(err, syscall.EPIPE):
	case code == exitInterrupted && strings.Contains(text, context.Canceled.Error()):
		how, _, _ := strings.Cut(text, ": ")
		if !strings.HasPrefix(how, "after ") { // of inTurn
			how = ""
		}
		a.say("%s", strings.TrimSpace("interrupted "+how))
	case code == exitUnreachable:
		a.say("error: Redis is not reachable: %s", text)
	case code == exitRefused:
		a.say("error: refused by Redis: %s", text)
	default:
		a.say("error: %s", text)
	}
	return code
}

// errorText returns the text of an error as one or more lines, without the name of the package.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "delayq: ", "")
}

// codeOf returns the exit code of an error.
func codeOf(err error) int {
	var own *exitCode
	switch {
	case err == nil, errors.Is(err, syscall.EPIPE): // whoever read has read enough
		return exitDone
	case errors.As(err, &own):
		return own.code
	case errors.Is(err, delayq.ErrNotFound):
		return exitNotFound
	case isConflict(err):
		return exitConflict
	case refused(err):
		return exitRefused
	case unreachable(err):
		return exitUnreachable
	case errors.Is(err, delayq.ErrInvalid):
		return exitUsage
	}
	return exitError
}

// bare returns an error without the names of the call, the topic and the job, which are shown
// beside it.
func bare(err error) error {
	if err == nil {
		return nil
	}
	var duplicate *delayq.DuplicateError
	if errors.As(err, &duplicate) {
		return duplicate
	}
	for _, target := range append([]error{delayq.ErrNotFound}, conflicts...) {
		if errors.Is(err, target) {
			return target
		}
	}
	if _, rest, ok := strings.Cut(err.Error(), delayq.ErrInvalid.Error()+": "); ok {
		return errors.New(rest)
	}
	return err
}

// isConflict reports whether a job or a topic is not in the state that a call needs.
func isConflict(err error) bool {
	for _, target := range conflicts {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

var conflicts = []error{
	delayq.ErrDuplicate, delayq.ErrRunning, delayq.ErrDead, delayq.ErrChanged, delayq.ErrTooManyPauses, delayq.ErrNotEmpty,
}

// refused reports whether Redis does not let this user do this, or no user at all.
func refused(err error) bool {
	if redis.IsPermissionError(err) || redis.IsAuthError(err) || redis.IsReadOnlyError(err) {
		return true
	}
	var said redis.Error
	if !errors.As(err, &said) {
		return false
	}
	for _, words := range []string{"NOPERM", "NOAUTH", "WRONGPASS", "READONLY", "can't run this command", "ACL failure in script"} {
		if strings.Contains(said.Error(), words) {
			return true
		}
	}
	return false
}

// unreachable reports whether Redis did not answer, or cannot serve anybody now.
func unreachable(err error) bool {
	var network net.Error
	switch {
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, redis.ErrPoolTimeout),
		errors.Is(err, delayq.ErrUnknownOutcome):
		return true
	}
	return redis.IsLoadingError(err) || redis.IsClusterDownError(err) || redis.IsMasterDownError(err) ||
		redis.IsMaxClientsError(err) || redis.IsTryAgainError(err) || strings.Contains(err.Error(), "all sentinels specified in configuration are unreachable")
}

// A tally adds up the outcomes of single jobs to an exit code.
type tally struct {
	done  int
	codes map[int]int
	first error
}

func (t *tally) add(err error) {
	if err == nil {
		t.done++
		return
	}
	if t.first == nil {
		t.first = err
	}
	if t.codes == nil {
		t.codes = map[int]int{}
	}
	t.codes[codeOf(err)]++
}

// result returns nil if all was done, the one code that all failures share if nothing was done, and
// exitPartly otherwise. The errors themselves have been printed with the jobs.
func (t *tally) result() error {
	switch {
	case len(t.codes) == 0:
		return nil
	case t.done == 0 && len(t.codes) == 1:
		return &exitCode{code: codeOf(t.first)}
	}
	return &exitCode{code: exitPartly}
}
