package delayqtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/serve"
)

// maxAdvance is the longest Advance: the longest delay of a job.
const maxAdvance = 100 * 365 * 24 * time.Hour

// hookPatience is how long, in real time, Advance waits until hooks have received an outcome that
// Redis has counted. They receive it within microseconds, unless a server has just been stopped.
const hookPatience = time.Second

// An outcome is a counter of a topic whose events hooks receive too.
type outcome struct {
	topic   string
	counter delayq.Counter
}

// counted are the outcomes that both Redis and the hooks count.
var counted = []delayq.Counter{
	delayq.CounterAcked, delayq.CounterRetried, delayq.CounterSnoozed, delayq.CounterBuried, delayq.CounterExpired,
	delayq.CounterReturned, delayq.CounterHeld,
}

// Advance moves Redis's clock ahead by d, rounded up to the millisecond, and runs all jobs that
// become due in the topics of the servers of Serve. The clock goes from due time to due time and
// stands still while handlers run. So each job starts at its own due time, and all jobs of an
// earlier time finish before those of a later one. Jobs of the same millisecond run concurrently,
// as always. Retries, snoozed jobs and jobs that handlers enqueue run too if they are due within d.
//
// At each stop of the clock the servers look at everything, and say when anything can happen next:
// a job or a slot of a schedule is due, a rate allows the next start, a hold or a pause ends, a
// batch is gathered. The clock stops there too. So what has a limit runs at the very millisecond
// that the limit allows, and dead and done jobs are removed that are past their retention then.
//
// Advance returns when the clock has reached its goal, no job that can run then is left, and hooks
// have received all events. Advance(ctx, 0) runs the jobs that are due now. Advance does not wait
// for jobs of topics that no server handles, nor for jobs whose topic or key is paused, held or
// halted then; AssertNone names these with their reasons. It takes a few milliseconds of real time
// for each stop, however long the span. A job that snoozes for a minute all day long has 1,440.
//
// If the jobs of one due time have not run after Limit of real time, for example because a handler
// blocks, Advance returns an error that names them, and the clock stays there. Other errors are
// [delayq.ErrInvalid] for an invalid d, another Advance in progress, a server that Serve did not
// start, the error of ctx, and an error of the embedded Redis. Range: 0 to 100 years.
func (q *Queue) Advance(ctx context.Context, d time.Duration) error {
	if err := q.advance(ctx, d); err != nil {
		return fmt.Errorf("delayqtest: advance: %w", err)
	}
	return nil
}

func (q *Queue) advance(ctx context.Context, d time.Duration) error {
	if d < 0 || d > maxAdvance {
		return fmt.Errorf("%w: by %v: must be from 0 to %v", delayq.ErrInvalid, d, maxAdvance)
	}
	if !q.advancing.TryLock() {
		return errors.New("another Advance is in progress")
	}
	defer q.advancing.Unlock()
	now := q.freeze()
	goal := ceil(now.Add(d))
	if err := q.onlyServed(ctx); err != nil {
		return err
	}
	for {
		next, err := q.settle(ctx, now)
		if err != nil {
			return err
		}
		if !now.Before(goal) {
			return nil
		}
		if next = ceil(next); next.IsZero() || next.After(goal) {
			next = goal
		}
		if err := q.advanceTo(ctx, now, next); err != nil {
			return err
		}
		now = next
	}
}

// onlyServed returns an error if there are other servers than those of Serve: Advance would not
// wait for their jobs.
func (q *Queue) onlyServed(ctx context.Context) error {
	all, err := q.Inspector.Servers(ctx)
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, info := range all {
		if !slices.ContainsFunc(q.servers, func(s *served) bool { return s.server.ID() == info.ID }) {
			return fmt.Errorf("there is a server that was not started by Serve, for the topics %q", slices.Sorted(maps.Keys(info.Topics)))
		}
	}
	return nil
}

// settle waits until all jobs that are due at now have run. It returns when the next event is
// (zero: never).
func (q *Queue) settle(ctx context.Context, now time.Time) (next time.Time, err error) {
	limited, cancel := context.WithTimeoutCause(ctx, q.Limit, errLimit)
	defer cancel()
	topics := q.handled() // and others that patterns find
	var before, infos []delayq.TopicStats
	var quiet time.Time // since when it waits for the hooks only
	for p := new(pace); ; before = infos {
		if q.handlers() == 0 {
			seen, err := q.look(limited)
			switch {
			case limited.Err() != nil:
				return time.Time{}, q.stuck(limited, now, topics)
			case err != nil:
				return time.Time{}, err
			}
			topics = seen.Topics
			if infos, err = q.inspect(ctx, topics); err != nil {
				return time.Time{}, err
			}
			// Topics are looked at one after the other, and the numbers of each too. In between, a
			// handler of a later topic may have enqueued to an earlier one. If a second look at all
			// shows no difference, counters included, nothing happened between the two.
			switch same := len(infos) == 0 || reflect.DeepEqual(infos, before); {
			case seen.Busy || running(infos) || q.handlers() > 0:
				quiet = time.Time{}
			case !same && limited.Err() == nil:
				continue
			case !same:
			case q.hooksTold(topics, infos):
				return seen.Next, nil
			case quiet.IsZero():
				quiet = time.Now()
			case time.Since(quiet) > hookPatience:
				q.forgive(topics, infos)
			}
		}
		if !p.wait(limited, q.ended) {
			return time.Time{}, q.stuck(limited, now, topics)
		}
	}
}

// handled returns the topics that servers had handlers for at their start.
func (q *Queue) handled() (topics []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.servers {
		topics = append(topics, s.topics...)
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

// look makes all servers look at everything, and puts together what they see.
func (q *Queue) look(ctx context.Context) (all serve.Horizon, err error) {
	q.mu.Lock()
	servers := slices.Clone(q.servers)
	q.mu.Unlock()
	for _, s := range servers {
		h, err := s.watch.engine.Look(ctx)
		if err != nil {
			return all, err
		}
		all.Topics = append(all.Topics, h.Topics...)
		all.Busy = all.Busy || h.Busy
		if all.Next.IsZero() || !h.Next.IsZero() && h.Next.Before(all.Next) {
			all.Next = h.Next
		}
	}
	slices.Sort(all.Topics)
	all.Topics = slices.Compact(all.Topics)
	return all, nil
}

// running reports whether a job of any topic runs.
func running(infos []delayq.TopicStats) bool {
	return slices.ContainsFunc(infos, func(info delayq.TopicStats) bool { return info.Running > 0 })
}

// handlers returns how many handlers run, or have returned without all hooks having received it.
func (q *Queue) handlers() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.servers {
		n += s.watch.running
	}
	return n
}

// inspect reads the numbers of topics. It leaves out the time, which tells two looks apart.
func (q *Queue) inspect(ctx context.Context, topics []string) ([]delayq.TopicStats, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	infos, err := q.Inspector.Stats(ctx, topics...)
	for i := range infos {
		infos[i].At = time.Time{}
	}
	return infos, err
}

func isDue(at, now time.Time) bool { return !at.IsZero() && !at.After(now) }

// hooksTold reports whether the hooks have received all outcomes that Redis has counted.
func (q *Queue) hooksTold(topics []string, infos []delayq.TopicStats) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, info := range infos {
		for _, counter := range counted {
			if q.told[outcome{topics[i], counter}] < info.Counters[counter] {
				return false
			}
		}
	}
	return true
}

// forgive stops waiting for hooks: the outcomes are those of a stopped server, or of one that Serve
// did not start.
func (q *Queue) forgive(topics []string, infos []delayq.TopicStats) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, info := range infos {
		for _, counter := range counted {
			o := outcome{topics[i], counter}
			q.told[o] = max(q.told[o], info.Counters[counter])
		}
	}
}

// errLimit is the cause when Limit is over.
var errLimit = errors.New("limit")

// stuck returns the reason why settle has given up.
func (q *Queue) stuck(ctx context.Context, now time.Time, topics []string) error {
	if cause := context.Cause(ctx); !errors.Is(cause, errLimit) {
		return cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), q.Limit)
	defer cancel()
	infos, err := q.inspect(ctx, topics)
	if err != nil {
		return err
	}
	var parts []string
	for i, info := range infos {
		var part []string
		if info.Running > 0 {
			ids := "?"
			if page, err := q.Inspector.Jobs(ctx, delayq.Query{Topic: topics[i], State: delayq.StateRunning, Limit: 5}); err == nil {
				ids = q.describe(ctx, page.Jobs, now)
			}
			part = append(part, fmt.Sprintf("%d running (%s)", info.Running, ids))
		}
		if info.Ready > 0 && !info.Paused {
			text := fmt.Sprintf("%d ready", info.Ready)
			if page, err := q.Inspector.Jobs(ctx, delayq.Query{Topic: topics[i], State: delayq.StateReady, Limit: 3}); err == nil {
				text += fmt.Sprintf(" (%s)", q.describe(ctx, page.Jobs, now))
			}
			part = append(part, text)
		}
		if isDue(info.NextDue, now) {
			part = append(part, "some due")
		}
		if isDue(info.NextSlot, now) {
			part = append(part, "slots of schedules due, whose calendars may not be registered")
		}
		if len(part) > 0 {
			parts = append(parts, fmt.Sprintf("topic %q: %s", topics[i], strings.Join(part, ", ")))
		}
	}
	if len(parts) == 0 {
		parts = []string{fmt.Sprintf("%d handlers of cancelled or replaced jobs", q.handlers())}
	}
	return fmt.Errorf("after %v of real time there is still work to do at %v: %s; if handlers do not block but are slow or many, raise Limit",
		q.Limit, now.Format(timeFormat), strings.Join(parts, "; "))
}
