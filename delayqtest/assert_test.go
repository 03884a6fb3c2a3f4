package delayqtest_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// A fakeT is a test that records its failures.
type fakeT struct {
	mu       sync.Mutex
	said     []string
	logged   []string
	cleanups []func()
}

func (f *fakeT) Helper()                           {}
func (f *fakeT) Cleanup(c func())                  { f.cleanups = append(f.cleanups, c) }
func (f *fakeT) Errorf(format string, args ...any) { f.say(&f.said, "error: "+format, args...) }
func (f *fakeT) Logf(format string, args ...any)   { f.say(&f.logged, format, args...) }
func (f *fakeT) Fatalf(format string, args ...any) {
	f.say(&f.said, "fatal: "+format, args...)
	runtime.Goexit()
}

func (f *fakeT) say(list *[]string, format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*list = append(*list, fmt.Sprintf(format, args...))
}

func (f *fakeT) end() {
	for i := len(f.cleanups) - 1; i >= 0; i-- {
		f.cleanups[i]()
	}
}

// try runs a part of a test and returns its complaints, without dates.
func (f *fakeT) try(part func()) string {
	done := make(chan struct{})
	go func() {
		defer close(done)
		part()
	}()
	<-done
	f.mu.Lock()
	defer f.mu.Unlock()
	text := strings.Join(f.said, "\n")
	f.said = nil
	return dates.ReplaceAllString(text, "DATE")
}

var dates = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}`)

func TestAssertions(t *testing.T) {
	f := &fakeT{}
	q := delayqtest.Start(f)
	defer f.end()
	q.Serve(handle(func(_ context.Context, job *delayq.Job) error {
		if job.ID == "dead" {
			return delayq.Permanent(errors.New("out of stock"))
		}
		return nil
	}, "mail"))
	hour := q.Now().Add(time.Hour)
	ctx := t.Context()

	require.Empty(t, f.try(func() { q.AssertNone("mail") }))
	require.Equal(t, `error: topic "mail": there is no job "a", nor any other`, f.try(func() { q.AssertScheduled("mail", "a", hour) }))
	require.Empty(t, q.Scheduled("mail"))

	for id, in := range map[string]time.Duration{"b": 2 * time.Hour, "a": time.Hour} {
		_, err := q.Client.Enqueue(ctx, "mail", id, []byte(id), delayq.ProcessIn(in), delayq.Retention(24*time.Hour))
		require.NoError(t, err)
	}
	require.Empty(t, f.try(func() {
		q.AssertScheduled("mail", "a", hour)
		q.AssertScheduled("mail", "a", hour.Add(-time.Nanosecond)) // rounded up, like ProcessAt
		q.AssertState("mail", "b", delayq.StateScheduled)
	}))
	list := q.Scheduled("mail")
	require.Len(t, list, 2)
	require.Equal(t, "a", list[0].ID)
	require.Equal(t, "b", string(list[1].Payload))

	require.Equal(t, `error: topic "mail": want job "a" scheduled at DATE (in 59m59.999s), but it is scheduled at DATE (in 1h0m0s)`,
		f.try(func() { q.AssertScheduled("mail", "a", hour.Add(-time.Millisecond)) }))
	require.Equal(t, `error: topic "mail": there is no job "c", but there are 2 others: "a" scheduled at DATE (in 1h0m0s), "b" scheduled at DATE (in 2h0m0s)`,
		f.try(func() { q.AssertState("mail", "c", delayq.StateDead) }))
	require.Equal(t, `error: topic "mail": want job "a" dead, but it is scheduled at DATE (in 1h0m0s)`,
		f.try(func() { q.AssertState("mail", "a", delayq.StateDead) }))
	require.Equal(t, `error: topic "mail": want no jobs, but there are 2: "a" scheduled at DATE (in 1h0m0s), "b" scheduled at DATE (in 2h0m0s)`,
		f.try(func() { q.AssertNone("mail") }))
	for i := range 12 {
		_, err := q.Client.Enqueue(ctx, "many", fmt.Sprint(i), nil)
		require.NoError(t, err)
	}
	require.Contains(t, f.try(func() { q.AssertNone("many") }), `there are 12: "0" ready (no live server handles the topic`)

	_, err := q.Client.Enqueue(ctx, "mail", "dead", nil)
	require.NoError(t, err)
	q.Advance(2 * time.Hour)
	require.Empty(t, f.try(func() {
		q.AssertState("mail", "a", delayq.StateDone)
		q.AssertState("mail", "dead", delayq.StateDead)
	}))
	require.Equal(t, `error: topic "mail": want job "dead" done, but it is dead after attempt 1 failed: out of stock`,
		f.try(func() { q.AssertState("mail", "dead", delayq.StateDone) }))
	require.Equal(t, `error: topic "mail": want no jobs, but there are 1: "dead" dead after attempt 1 failed: out of stock`,
		f.try(func() { q.AssertNone("mail") }))
	require.Contains(t, f.try(func() { q.AssertNone("{") }), "fatal: delayqtest: jobs topic")
	require.Contains(t, f.try(func() { q.AssertState("{", "a", delayq.StateDead) }), "fatal: delayqtest: get topic")
	require.Contains(t, f.try(func() { q.Scheduled("{") }), "fatal: delayqtest: jobs topic")
}

func TestScheduledListsMoreThanAPage(t *testing.T) {
	q := delayqtest.Start(t)
	jobs := make([]delayq.NewJob, 2100)
	for i := range jobs {
		jobs[i] = delayq.NewJob{Topic: "mail", ID: fmt.Sprintf("%04d", i), Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}}
	}
	_, err := q.Client.EnqueueBatch(t.Context(), jobs)
	require.NoError(t, err)
	list := q.Scheduled("mail")
	require.Len(t, list, len(jobs))
	require.Equal(t, "2099", list[2099].ID)
}

func TestErrorsFailTheTest(t *testing.T) {
	f := &fakeT{}
	q := delayqtest.Start(f)
	require.Contains(t, f.try(func() { q.Advance(-time.Second) }), "fatal: delayqtest: advance: delayq: invalid")
	require.Contains(t, f.try(func() { q.Serve(func(*delayq.Server) {}) }), "fatal: delayqtest: server: run: delayq: invalid")
	require.Contains(t, f.try(func() { delayqtest.Start(f, delayq.Prefix("")) }), "fatal: delayqtest: open: ")
	q.Serve(handle(func(context.Context, *delayq.Job) error { return errors.New("no") }, "mail"))
	_, err := q.Client.Enqueue(t.Context(), "mail", "a", nil)
	require.NoError(t, err)
	q.Advance(time.Hour)
	require.Contains(t, f.try(func() { q.Unfreeze() }), "fatal: delayqtest: unfreeze: Redis's clock is 59m5")
	f.end()
	require.Empty(t, f.said)
	log := strings.Join(f.logged, "\n")
	require.Contains(t, log, "level=WARN msg=\"job retried\" topic=mail job=a attempt=1 err=no")
	require.NotContains(t, log, "time=")
}

// newT returns the T of an example. It prints failures, so that the example fails.
func newT() *exampleT { return &exampleT{} }

type exampleT struct{ fakeT }

func (t *exampleT) Errorf(format string, args ...any) { fmt.Printf("error: "+format+"\n", args...) }
func (t *exampleT) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
