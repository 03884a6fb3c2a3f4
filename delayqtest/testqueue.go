package delayqtest

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/delayq/delayq"
)

// T is the part of *testing.T, *testing.B and *testing.F that this package needs.
type T interface {
	Helper()
	Cleanup(func())
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// A TestQueue is a Queue whose errors fail a test. Call its methods on the goroutine of the test,
// except Now.
type TestQueue struct {
	*Queue
	t    T
	logs *testLog
}

// Start is [Open] for a test. The clock stands still from the beginning, errors fail the test,
// servers log to the test, and everything is closed when the test ends. A subtest starts its own
// queue, which takes about a millisecond.
func Start(t T, opts ...delayq.ClientOption) *TestQueue {
	t.Helper()
	inner, err := Open(opts...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	q := &TestQueue{Queue: inner, t: t, logs: &testLog{t: t}}
	q.freeze()
	t.Cleanup(func() {
		t.Helper()
		if err := q.Close(); err != nil {
			t.Errorf("%v", err)
		}
		q.logs.end()
	})
	return q
}

// Serve is [Queue.Serve]. The server stops at the end of the test, unless stop is called before. An
// error of its Run fails the test.
func (q *TestQueue) Serve(setup func(*delayq.Server), opts ...delayq.ServerOption) (stop func()) {
	q.t.Helper()
	end, err := q.Queue.Serve(setup, append([]delayq.ServerOption{delayq.Logger(q.logs.logger())}, opts...)...)
	if err != nil {
		q.t.Fatalf("%v", err)
	}
	return func() {
		q.t.Helper()
		if err := end(); err != nil {
			q.t.Errorf("%v", err)
		}
	}
}

// Advance is [Queue.Advance]; an error ends the test.
func (q *TestQueue) Advance(d time.Duration) {
	q.t.Helper()
	if err := q.Queue.Advance(context.Background(), d); err != nil {
		q.t.Fatalf("%v", err)
	}
}

// Unfreeze is [Queue.Unfreeze]; an error ends the test.
func (q *TestQueue) Unfreeze() {
	q.t.Helper()
	if err := q.Queue.Unfreeze(); err != nil {
		q.t.Fatalf("%v", err)
	}
}

// A testLog writes the log of a server to a test, line by line, as long as the test runs.
type testLog struct {
	mu sync.Mutex
	t  T // nil: the test has ended
}

func (l *testLog) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{} // it is real time, not the time of the test
			}
			return a
		},
	}))
}

// Write writes one line.
func (l *testLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.t != nil {
		l.t.Helper()
		l.t.Logf("%s", strings.TrimSuffix(string(line), "\n"))
	}
	return len(line), nil
}

func (l *testLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t = nil
}
