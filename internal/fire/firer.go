package fire

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/schedule"
	"github.com/delayq/delayq/internal/script"
)

const (
	// callLimit is the maximum number of schedules that one call reads or fires. callJobs is about
	// the maximum number of jobs of one call, and fireBytes about the maximum number of bytes.
	callLimit = 250
	callJobs  = 500
	CallBytes = 1 << 20

	// catchUpJobs is the maximum number of jobs of one schedule in one call.
	catchUpJobs = 100

	// MissedEvery is the minimum time between two log messages about missed slots.
	MissedEvery = time.Minute

	// PageSlots is about how many slots a server computes before it looks whether others have come
	// due in the meantime. This takes 1 ms with cron rules, more with slow calendars.
	PageSlots = 5000

	// releasePages is how many pages of schedules with a waiting slot a server looks at in each
	// tick. maxEnded is the maximum number of schedules it remembers whose runs have ended here.
	// Further ones are found by the look at each tick.
	releasePages = 4
	maxEnded     = 10_000

	// plansLimit is how many rhythms a server caches for each topic.
	plansLimit = 20_000
)

// Places of a schedule, as the scripts name them. A paused or ended schedule is in neither.
const (
	PlaceSlots   = "slots"   // it has a next slot
	placeWaiting = "waiting" // a slot waits for the end of its last run
)

// overlapWords are the names of the policies in the schedule_fire script.
var overlapWords = map[record.Overlap]string{
	record.OverlapSkip: "skip", record.OverlapAllow: "allow", record.OverlapQueueOne: "queue", record.OverlapCancelPrevious: "cancel",
}

// A Firer is the part of a topic's timer that fires schedules. Only the promote loop uses it. It
// reaches Redis only through exec.
type Firer struct {
	exec      func(ctx context.Context, s *script.Script, jobs int, args ...any) (script.Reply, error)
	log       *slog.Logger
	tick      time.Duration
	calendars schedule.Calendars
	channel   string // for control messages
	topic     string
	// at the last promote, a slot of some schedule waited for a run to finish
	Waits atomic.Bool

	plans map[string]plan   // by name
	Bad   map[string]string // by name, the logged errors of schedules that cannot be fired here
	blind bool              // the last look found less than promote had counted
	Idle  int               // due schedules that the last look could not fire
	Last  time.Time         // time of the last look
	slow  loop.Pace
	until time.Time // no look before this time, after a call that failed
	next  next
	knows bool // see Knows
	stuck int  // due slots that the last look could not fire
	// jobs have been fired that are due later, so a promote must find out when
	delayed bool

	missed map[string]int64 // slots by schedule, since the last log message about them
	warned time.Time        // time of that message

	Ended  []string  // schedules whose runs have ended here, and which may have a waiting slot
	Looked time.Time // time of the last look at other schedules with a waiting slot
	passed int       // how many of these the looks so far have covered
}

// A plan is a rhythm computed from the definition with this nonce. It is cached because parsing
// rules and loading zones is expensive.
type plan struct {
	nonce string
	next  schedule.Rhythm
}

// New returns the firer of a topic. exec calls a script of the topic, and goes on when the
// loop that fires is stopped.
func New(
	k *script.Keys, tick time.Duration, calendars schedule.Calendars, log *slog.Logger,
	exec func(ctx context.Context, s *script.Script, jobs int, args ...any) (script.Reply, error),
) *Firer {
	return &Firer{
		exec: exec, log: log, tick: tick, calendars: calendars, channel: script.ControlChannel(k.Prefix()), topic: k.Topic,
		plans: make(map[string]plan), Bad: make(map[string]string), missed: make(map[string]int64),
	}
}

// Remember notes schedules whose runs have ended.
func (f *Firer) Remember(ended []string) {
	if room := maxEnded - len(f.Ended); room >= len(ended) {
		f.Ended = append(f.Ended, ended...)
		slices.Sort(f.Ended) // a call must not name one twice
		f.Ended = slices.Compact(f.Ended)
	}
}

// Fire fires slots that are due, and waiting slots whose run has ended. due and waiting are the
// numbers of schedules of each kind that promote has counted. again reports whether there may be
// more to do, or something to do sooner than promote said.
func (f *Firer) Fire(ctx context.Context, due, waiting int) (again bool) {
	f.noteWaiting(waiting)
	f.knows, f.delayed = false, false
	if time.Now().Before(f.until) {
		return false
	}
	defer func() { f.Warn(again || time.Since(f.warned) < MissedEvery) }()
	again, err := f.fireDue(ctx, due)
	more := false
	if err == nil && waiting > 0 {
		more, err = f.release(ctx)
	}
	if err != nil {
		f.failed()
		return false
	}
	f.slow.Reset()
	more = f.promoteAfter(more)
	f.knows = !more && !f.next.read.IsZero()
	return again || more
}

// promoteAfter reports whether a promote must find out what is to be done after a firing. released:
// waiting slots were fired after the call that read the next slots. The slots that follow these can
// be earlier.
func (f *Firer) promoteAfter(released bool) bool {
	if released {
		f.Forget()
	}
	return released || f.delayed
}

// noteWaiting notes how many schedules have a waiting slot.
func (f *Firer) noteWaiting(n int) {
	if f.Waits.Store(n > 0); n == 0 {
		f.Ended, f.passed = nil, 0
	}
}

// failed notes that a call has failed. It returns true.
func (f *Firer) failed() bool {
	f.until = time.Now().Add(f.slow.Next())
	return true
}

// LookAgain makes the next Fire look at all due and waiting slots, though nothing is new.
func (f *Firer) LookAgain() {
	f.Last, f.Looked = time.Time{}, time.Time{}
	f.Forget()
}

// Quiet reports whether nothing is to be logged about missed slots.
func (f *Firer) Quiet() bool { return len(f.missed) == 0 }

// Warn logs how many slots of how many schedules were missed. It logs one line for all, when there
// is nothing more to fire, and at most one a minute. After an outage there may be thousands.
func (f *Firer) Warn(later bool) {
	if len(f.missed) == 0 || later && len(f.missed) < plansLimit {
		return
	}
	which, count := fmt.Sprintf("%d schedules", len(f.missed)), int64(0)
	for name, n := range f.missed {
		if count += n; len(f.missed) == 1 {
			which = name
		}
	}
	f.log.Warn("slots missed", "schedule", which, "count", count)
	clear(f.missed)
	f.warned = time.Now()
}

// fireDue fires slots that are due.
func (f *Firer) fireDue(ctx context.Context, due int) (again bool, err error) {
	now := time.Now()
	if due == 0 || due == f.Idle && now.Sub(f.Last) < f.tick || f.expected(due, now) {
		return false, nil // nothing new since the last look, or FireNext fires them
	}
	f.Last, f.Idle, f.stuck = now, 0, 0
	f.Forget()
	all := 0
	for {
		looked, done, more, err := f.firePage(ctx, PlaceSlots, all, nil)
		switch {
		case err != nil:
			return false, err
		case done > 0: // first promote again: a slot must not make other jobs late
			f.blind = false
			return true, nil
		}
		if all += looked; !more {
			break
		}
	}
	if all >= due {
		f.Idle, f.blind = due, false
		return false, nil
	}
	// Another server has fired some in the meantime. Promote must report once when the next slot
	// is.
	f.Idle, f.blind = all, !f.blind
	return f.blind, nil
}

// release fires waiting slots whose run has ended. It looks at the schedules whose runs have ended
// here, or of which a message said so. Once a tick it also looks at some others in turn: those of a
// server that crashed before it could look, and those of a message that was lost.
func (f *Firer) release(ctx context.Context) (again bool, err error) {
	if len(f.Ended) > 0 {
		looked, done, _, err := f.firePage(ctx, placeWaiting, 0, f.Ended[:min(len(f.Ended), callLimit)])
		if err != nil {
			return false, err
		}
		f.Ended = f.Ended[max(1, looked):]
		again = done > 0 || len(f.Ended) > 0
	}
	if now := time.Now(); now.Sub(f.Looked) >= f.tick-f.tick/5 {
		f.Looked = now
		for range releasePages {
			looked, done, more, err := f.firePage(ctx, placeWaiting, f.passed, nil)
			if err != nil {
				return false, err
			}
			again = again || done > 0
			if f.passed += looked - done; !more {
				f.passed = 0
				break
			}
		}
	}
	return again, nil
}

// firePage reads some schedules and fires what it can. It reads the schedules in which, or if that
// is empty, a page from offset on. It returns how many it has looked at and for how many something
// happened, and reports whether there may be more after them.
func (f *Firer) firePage(ctx context.Context, place string, offset int, which []string) (looked, done int, more bool, err error) {
	args := []any{place, offset, callLimit, CallBytes}
	for _, name := range which {
		args = append(args, name)
	}
	r, err := f.exec(ctx, script.ScheduleDue, callLimit, args...)
	if err != nil {
		return 0, 0, false, err
	}
	looked = int(r.Number(2))
	size, walked, cut, last := 0, 0, false, ""
	var list []Firing
	for i := range r.List(3) {
		name, raw := r.List(3).Text(i), r.List(5).Text(i)
		size += len(raw)
		one, err := f.Plan(place, name, r.List(4).Text(i), raw, r.List(6).Text(i), r.Now())
		f.complain(name, err)
		if err != nil {
			if place == PlaceSlots {
				f.stuck++
			}
			continue
		}
		list = append(list, one)
		if walked += one.Walked; walked >= PageSlots {
			cut, last = true, name
			if place == PlaceSlots {
				looked = i + 1
			}
			break
		}
	}
	for len(list) > 0 {
		n, some, err := f.FireSome(ctx, list)
		if err != nil {
			return 0, 0, false, err
		}
		list = list[n:]
		done += some
	}
	switch {
	case cut && len(which) > 0:
		looked = slices.Index(which, last) + 1
	case cut && place == placeWaiting:
		if done > 0 {
			looked = done // the same page again, without those that are done
		}
	}
	return looked, done, cut || looked == callLimit || size >= CallBytes, nil
}

// complain logs once that a schedule cannot be fired here, and once that it can be again.
func (f *Firer) complain(name string, err error) {
	switch was, bad := f.Bad[name]; {
	case err == nil && bad:
		delete(f.Bad, name)
		f.log.Info("schedule works again", "schedule", name, "err", was)
	case err != nil && was != err.Error():
		if len(f.Bad) >= plansLimit {
			clear(f.Bad)
		}
		f.Bad[name] = err.Error()
		f.log.Error("schedule failed", "schedule", name, "err", err)
	}
}

// A Firing holds what to do about one schedule.
type Firing struct {
	name  string
	def   *schedule.Schedule
	place string
	score string // of the slot that it has in place, as Redis writes it
	schedule.Decision
}

// Plan decides what to do about a schedule.
func (f *Firer) Plan(place, name, from, raw, text string, now int64) (Firing, error) {
	d, err := record.DecodeDefinition(raw)
	if err != nil {
		return Firing{}, err
	}
	known, ok := f.plans[name]
	if !ok || known.nonce != d.Nonce {
		next, err := schedule.NewRhythm(d, f.calendars)
		if err != nil {
			return Firing{}, err
		}
		if len(f.plans) >= plansLimit {
			clear(f.plans)
		}
		if d.Spec.Kind == record.Cron {
			if err := schedule.StoredCron(d.Spec.Text); err != nil {
				f.log.Warn("rule no longer accepted", "schedule", name, "err", err)
			}
		}
		known = plan{d.Nonce, next}
		f.plans[name] = known
	}
	state, err := record.DecodeScheduleState(text)
	if err != nil {
		return Firing{}, err
	}
	if state.Nonce != d.Nonce {
		return Firing{}, errors.New("state belongs to another definition") // a check repairs it
	}
	at, err := strconv.ParseFloat(from, 64)
	if err != nil {
		return Firing{}, fmt.Errorf("slot: %w", err)
	}
	one := Firing{name: name, def: &schedule.Schedule{Definition: d, Next: known.next}, place: place, score: from}
	one.Decision, err = one.def.Decide(schedule.Look{
		Slot: int64(at), Waits: place == placeWaiting, Now: now, State: &state,
		Batch: max(1, min(catchUpJobs, CallBytes/(len(d.Payload)+1))),
	})
	return one, err
}

// FireSome executes the schedule_fire script once for the first schedules of list. It returns how
// many these were, and for how many of them something happened, by this call or by another
// server's.
func (f *Firer) FireSome(ctx context.Context, list []Firing) (n, done int, err error) {
	args := []any{f.channel, f.topic, 0, CallBytes, gather.Milliseconds(), ahead.Milliseconds(), f.stuck}
	jobs, size := 0, 0
	for n < len(list) && jobs < callJobs && size < CallBytes {
		one := &list[n]
		n++
		args = append(args, one.name, one.def.Nonce, one.place, one.score, overlapWords[one.Overlap], one.def.Most,
			one.Missed, one.Skipped, orEmpty(one.After), orEmpty(one.Rest), orEmpty(one.Gap), len(one.Slots))
		for _, slot := range one.Slots {
			job, err := one.def.JobAt(one.name, slot)
			if err != nil {
				return 0, 0, err
			}
			args = append(args, slot, job.Nonce, job.Head, job.Tail, job.Due)
			size += len(job.Tail)
			f.delayed = f.delayed || job.Due > slot
		}
		jobs += len(one.Slots)
	}
	look := n == len(list) && list[0].place == PlaceSlots
	if look {
		args[2] = callLimit
	}
	r, err := f.exec(ctx, script.ScheduleFire, jobs, args...)
	if err != nil {
		return 0, 0, err
	}
	if look {
		f.noteWaiting(int(r.Number(4)))
		f.next = readNext(r)
	}
	letters := r.Text(2)
	for i, one := range list[:n] {
		if i >= len(letters) || letters[i] == script.LetterWaits {
			continue
		}
		done++
		if letters[i] == script.LetterFired && one.Missed > 0 {
			f.missed[one.name] += one.Missed
		}
	}
	return n, done, nil
}

// orEmpty formats a slot for the script, which expects an empty string for none.
func orEmpty(slot int64) string {
	if slot == 0 {
		return ""
	}
	return strconv.FormatInt(slot, 10)
}
