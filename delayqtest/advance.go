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
)

// maxAdvance is the longest Advance: that of the longest delay of a job.
const maxAdvance = 100 * 365 * 24 * time.Hour

// hookPatience is how long, in real time, Advance waits for hooks to be told of an outcome that Redis knows. They are told within
// microseconds, unless a server was stopped just then.
const hookPatience = time.Second

// An outcome is a counter of a topic that hooks are told of as well.
type outcome struct {
	topic   string
	counter delayq.Counter
}

// counted are the outcomes that both Redis and the hooks count.
var counted = []delayq.Counter{
	delayq.CounterAcked, delayq.CounterRetried, delayq.CounterSnoozed, delayq.CounterBuried, delayq.CounterExpired,
	delayq.CounterReturned,
}

// Advance moves Redis's clock ahead by d, rounded up to the millisecond, and runs what falls due meanwhile in the topics that servers of
// Serve handle. The clock goes from due time to due time and stands still while handlers run, so each job starts at its own due
// time and all of an earlier one before any of a later one; jobs of the same millisecond run side by side, as always. Retries, snoozed jobs
// and what handlers enqueue run too if they are due within d. The end of a pause is one of the times the clock stops at, and so
// is every slot of a schedule: its job is due at that very millisecond, and none is missed.
//
// Advance returns when the clock is at its goal and no job that is due then is left to run; hooks have been told by then. Advance(ctx, 0)
// runs what is due now. Jobs of topics that nobody handles, or that are paused, wait and are not waited for. What it costs is a few
// milliseconds of real time for each due time, however long the span: a job that snoozes for a minute all day long makes 1,440 of them.
//
// It is an error if what is due at one instant has not run after Limit of real time, as when a handler blocks: the text names the jobs, and the
// clock stays there. Other errors are ErrInvalid for a negative d and one of over 100 years, another Advance under way, a server that was not
// started by Serve, the end of ctx, and what the embedded Redis answers.
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
		return errors.New("another one is under way")
	}
	defer q.advancing.Unlock()
	now := q.freeze()
	goal := ceil(now.Add(d))
	if err := q.onlyServed(ctx); err != nil {
		return err
	}
	for {
		next, topics, err := q.settle(ctx, now)
		if err != nil {
			return err
		}
		if !now.Before(goal) {
			return nil
		}
		if next.IsZero() || next.After(goal) {
			now, topics = goal, nil
		} else {
			now = next
		}
		q.set(now)
		for _, topic := range topics {
			q.wake(topic)
		}
	}
}

// onlyServed makes sure that there is no server but those of Serve: a job that another one runs would not be waited for.
func (q *Queue) onlyServed(ctx context.Context) error {
	all, err := q.Client.Servers(ctx)
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

// settle waits until all that is due at now has run, and tells when there is something to do next (zero: never) and in which topics.
func (q *Queue) settle(ctx context.Context, now time.Time) (next time.Time, in []string, err error) {
	limited, cancel := context.WithTimeoutCause(ctx, q.Limit, errLimit)
	defer cancel()
	var topics []string
	var before, infos []*delayq.TopicInfo
	var quiet time.Time // since when only the hooks are waited for
	for p := new(pace); ; before = infos {
		topics = q.handled()
		if q.handlers() == 0 {
			if infos, err = q.inspect(ctx, topics); err != nil {
				return time.Time{}, nil, err
			}
			// Topics are looked at one after the other, and meanwhile a handler of a later one may have enqueued to an earlier one; and
			// a slot that waited may have been released before its schedule is looked at. If a second look at all of them shows
			// nothing different, counters included, nothing was going on between the two.
			same := atomic(infos) || reflect.DeepEqual(infos, before)
			released, err := q.released(ctx, topics, infos)
			if err != nil {
				return time.Time{}, nil, err
			}
			switch {
			case released:
				quiet, infos = time.Time{}, nil // what comes of it may come before the second look
			case q.push(topics, infos, now) || q.handlers() > 0:
				quiet = time.Time{}
			case !same && limited.Err() == nil:
				continue
			case !same:
			case q.hooksTold(topics, infos):
				next, in = earliest(topics, infos, now)
				return next, in, nil
			case quiet.IsZero():
				quiet = time.Now()
			case time.Since(quiet) > hookPatience:
				q.forgive(topics, infos)
			}
		}
		if !p.wait(limited, q.ended) {
			return time.Time{}, nil, q.stuck(limited, now, topics)
		}
	}
}

// handled lists the topics that servers handle, sorted.
func (q *Queue) handled() (topics []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.servers {
		topics = append(topics, s.topics...)
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

// handlers is how many handlers run, or have ended without all hooks knowing it.
func (q *Queue) handlers() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.servers {
		n += s.watch.running
	}
	return n
}

func (q *Queue) inspect(ctx context.Context, topics []string) ([]*delayq.TopicInfo, error) {
	infos := make([]*delayq.TopicInfo, len(topics))
	for i, topic := range topics {
		info, err := q.Client.Inspect(ctx, topic)
		if err != nil {
			return nil, err
		}
		infos[i] = info
	}
	return infos, nil
}

// push tells whether any topic has something left to do at now, and wakes servers for what they would else notice at the next tick only.
func (q *Queue) push(topics []string, infos []*delayq.TopicInfo, now time.Time) (busy bool) {
	for i, info := range infos {
		due := isDue(info.NextDue, now) || isDue(info.NextSlot, now)
		ready := info.Ready > 0 && !info.Paused
		if due || ready && info.Running == 0 {
			q.wake(topics[i])
		}
		busy = busy || due || ready || info.Running > 0
	}
	return busy
}

func isDue(at, now time.Time) bool { return !at.IsZero() && !at.After(now) }

// atomic tells whether all that settle asks about these topics is in one answer of Redis.
func atomic(infos []*delayq.TopicInfo) bool {
	return len(infos) == 0 || len(infos) == 1 && infos[0].Waiting == 0
}

// released tells whether a slot has waited for the end of a run that has ended, and has the servers look at it.
func (q *Queue) released(ctx context.Context, topics []string, infos []*delayq.TopicInfo) (found bool, err error) {
	for i, info := range infos {
		if info.Waiting == 0 {
			continue
		}
		list, err := q.Client.Schedules(ctx, topics[i])
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(list, func(s *delayq.ScheduleInfo) bool { return !s.Waits.IsZero() && !s.Going }) {
			found = true
			q.wake(topics[i])
		}
	}
	return found, nil
}

// wake has the servers look at a topic at once: whether a job is due, and whether a pause is over. The messages are those of the scripts of
// delayq: verb, fence, length of the topic, topic and no job ID.
func (q *Queue) wake(topic string) {
	for _, verb := range []string{"wake", "resume"} {
		q.Miniredis.Publish(delayq.ControlChannel(q.Prefix), fmt.Sprintf("%s 0 %d %s", verb, len(topic), topic))
	}
}

// earliest is when something happens next by itself, and in which topics: a job or a slot is due, or a pause ends.
func earliest(topics []string, infos []*delayq.TopicInfo, now time.Time) (next time.Time, in []string) {
	for i, info := range infos {
		for _, at := range []time.Time{info.NextDue, info.NextSlot, info.PausedUntil} {
			switch {
			case !at.After(now) || !next.IsZero() && at.After(next):
			case at.Equal(next):
				in = append(in, topics[i])
			default:
				next, in = at, []string{topics[i]}
			}
		}
	}
	return next, in
}

// hooksTold tells whether the hooks have been told of all outcomes that Redis has counted.
func (q *Queue) hooksTold(topics []string, infos []*delayq.TopicInfo) bool {
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

// forgive gives up waiting for hooks: the outcomes are those of a server that was stopped, or was not one of Serve.
func (q *Queue) forgive(topics []string, infos []*delayq.TopicInfo) {
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

// stuck says why settle has given up.
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
			if list, err := q.Client.List(ctx, topics[i], delayq.StateRunning, 0, 5); err == nil {
				ids = describe(list, now)
			}
			part = append(part, fmt.Sprintf("%d running (%s)", info.Running, ids))
		}
		if info.Ready > 0 && !info.Paused {
			part = append(part, fmt.Sprintf("%d ready", info.Ready))
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
