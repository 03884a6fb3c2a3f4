package serve

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/script"
)

// A Deliver carries out rows of one topic by a plan, and returns an outcome for each. An error says
// that the plan must be sent again.
type Deliver func(ctx context.Context, plan commit.Plan, rows []commit.Row) (outcomes []error, err error)

const (
	// listedTargets is the most targets that one call lists.
	listedTargets = 20

	// mostDeliveries is the most plans of a topic that are delivered at the same time.
	mostDeliveries = 4

	// deliverTimeout bounds the calls of a plan. A plan has several if its jobs need different
	// scripts.
	deliverTimeout = 2 * CallTimeout

	// mostAside is the longest time for which a target is left alone after an error.
	mostAside = 30 * time.Second

	// lookPerStuck is the least rest of the loop for each target that is left alone, if they are
	// many.
	lookPerStuck = 10 * time.Millisecond
)

// relaying is what the relay loop of a topic remembers. The loop delivers what runs of the topic
// have handed over: parcels. Their targets can be in other slots of a Cluster, so no script can do
// that. Every server of the topic has this loop, and any number of them can deliver a plan. Flows
// send their parcels in the same way: see deliver.go.
type relaying struct {
	cursor string    // the last target that was listed
	began  time.Time // the list
	aside  map[string]*stuckTarget
	slow   loop.Pace
	look   lookout

	refusals refusals
}

// refusals are the parcels that targets have refused since the last line of the log. One line a
// minute tells how many they are, and about the last one.
type refusals struct {
	mu     sync.Mutex // plans of several targets are delivered at the same time
	count  int
	last   Undelivered
	warned time.Time // the last line
}

// refusalsEvery is the least time between two lines about refused parcels.
const refusalsEvery = time.Minute

func (r *refusals) add(list []Undelivered) {
	if len(list) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count += len(list)
	r.last = list[len(list)-1]
}

// warn writes a line if one is due, or at the end of the loop. It returns when the next one is due;
// zero: all are told.
func (r *refusals) warn(log *slog.Logger, end bool) (next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count == 0 {
		return time.Time{}
	}
	if due := r.warned.Add(refusalsEvery); !end && time.Now().Before(due) {
		return due
	}
	log.Warn("jobs not handed over", "count", r.count, "job", r.last.From, "target", r.last.Topic, "id", r.last.ID, "err", r.last.Reason)
	r.count, r.warned = 0, time.Now()
	return time.Time{}
}

// A stuckTarget is one that has failed.
type stuckTarget struct {
	until    time.Time
	failures int
}

// relayStep is a step of the loop that delivers parcels. It is woken when runs have handed jobs
// over, and when promote has found parcels, which another server may have left.
func (t *Topic) relayStep(ctx context.Context) loop.Next {
	if ctx.Err() != nil {
		t.Loops.relaying.refusals.warn(t.trouble.log, true)
		return loop.Over
	}
	asked := t.Loops.relaying.look.take()
	busy, next, err := t.relay(ctx)
	line := t.Loops.relaying.refusals.warn(t.trouble.log, false)
	switch {
	case err != nil:
		t.Loops.relaying.look.keep(asked)
		return loop.PauseFor(t.Loops.relaying.slow.Next())
	case busy:
		answer(asked, sight{busy: true})
		t.Loops.relaying.slow.Reset()
		return loop.Again
	}
	t.Loops.relaying.slow.Reset()
	answer(asked, sight{})
	if next.IsZero() || !line.IsZero() && line.Before(next) {
		next = line
	}
	if next.IsZero() {
		return loop.Woken
	}
	return loop.RestFor(max(time.Millisecond, time.Until(next)))
}

// relay delivers one plan for each of some targets. busy reports whether there may be more to do
// now, and next is when a target that has failed is to be tried again; zero: there is none.
func (t *Topic) relay(ctx context.Context) (busy bool, next time.Time, err error) {
	at := &t.Loops.relaying
	tag := ""
	if at.cursor == "" && len(at.aside) == 0 { // else a plan is read that may have to wait
		tag = rand.Text()[:13]
	}
	r, err := t.parcelPlan(ctx, "", tag, at.cursor, 0)
	if err != nil {
		return false, next, err
	}
	targets := r.List(2).Texts()
	now := time.Now()
	if at.cursor == "" {
		at.began = now
	}
	if at.cursor = ""; len(targets) == listedTargets {
		at.cursor, busy = targets[len(targets)-1], true
	}
	var due []string
	for _, target := range targets {
		if a := at.aside[target]; a == nil || !now.Before(a.until) {
			due = append(due, target)
		}
	}
	var plan script.Reply
	if len(r) > 3 { // of the only target
		plan = append(slices.Clone(r[:2]), r[3:]...)
	}
	rests, errs := t.deliverAll(ctx, due, plan)
	for i, target := range due {
		if errs[i] != nil && ctx.Err() != nil { // interrupted
			continue
		}
		t.trouble.note("relay to "+target, errs[i])
		if errs[i] != nil {
			t.setAside(target)
			continue
		}
		delete(at.aside, target)
		switch again := rests[i]; {
		case again == noRest:
			busy = true
		case again > 0:
			next = time.Now().Add(again)
		}
	}
	if at.cursor == "" {
		t.forgetAside(at.began)
	}
	for _, a := range at.aside {
		if next.IsZero() || a.until.Before(next) {
			next = a.until
		}
	}
	// Each look lists all targets, so that many stuck ones must share it.
	if least := time.Now().Add(time.Duration(len(at.aside)) * lookPerStuck); len(at.aside) > listedTargets && next.Before(least) {
		next = least
	}
	return busy && ctx.Err() == nil, next, ctx.Err()
}

// setAside leaves a target alone for a while, twice as long each time.
func (t *Topic) setAside(target string) {
	at := &t.Loops.relaying
	if at.aside == nil {
		at.aside = make(map[string]*stuckTarget)
	}
	a := at.aside[target]
	if a == nil {
		a = &stuckTarget{}
		at.aside[target] = a
	}
	a.failures++
	wait := loop.Backoff(a.failures, loop.PaceFirst.Milliseconds(), mostAside.Milliseconds())
	a.until = time.Now().Add(wait)
}

// forgetAside forgets the targets that should have been tried since a list began, but were not in
// it: another server has delivered their parcels, or this one has and the reply was lost. They
// would be due for ever.
func (t *Topic) forgetAside(began time.Time) {
	at := &t.Loops.relaying
	for target, a := range at.aside {
		if a.until.Before(began) {
			delete(at.aside, target)
			t.trouble.note("relay to "+target, nil)
		}
	}
}

// noRest says that there are other parcels for a target, which can be delivered now.
const noRest = -1

// deliverAll delivers a plan for each target, some of them at the same time. See deliver about what
// it returns. plan is that of a lone target, if it is known.
func (t *Topic) deliverAll(ctx context.Context, targets []string, plan script.Reply) (rests []time.Duration, errs []error) {
	rests, errs = make([]time.Duration, len(targets)), make([]error, len(targets))
	if len(targets) == 1 {
		rests[0], errs[0] = t.deliver(ctx, targets[0], plan)
		return rests, errs
	}
	abreast(ctx, len(targets), mostDeliveries, func(ctx context.Context, i int) {
		rests[i], errs[i] = t.deliver(ctx, targets[i], nil)
	}, errs)
	return rests, errs
}

// abreast calls f with the numbers below n, at most that many at the same time. A call that crashes
// leaves its error in errs.
func abreast(ctx context.Context, n, most int, f func(ctx context.Context, i int), errs []error) {
	room := make(chan *loop.Sign, min(n, most))
	for _, g := range loop.SignOf(ctx).Split(cap(room)) {
		g.Wait()
		room <- g
	}
	defer loop.SignOf(ctx).Join()
	var group sync.WaitGroup
	for i := range n {
		g := <-room
		g.Turn()
		contain.Launch(&group, func() {
			defer func() {
				g.Wait()
				room <- g
			}()
			f(loop.Signed(ctx, g), i)
		}, func(c *contain.Crash) { errs[i] = c })
	}
	group.Wait()
}

// parcelPlan is one call of the parcel_plan script.
func (t *Topic) parcelPlan(ctx context.Context, target, tag, passed string, floor uint64) (script.Reply, error) {
	return t.exec(ctx, topicCall{script: script.ParcelPlan}, target, tag, passed, strconv.FormatUint(floor, 10))
}

// mostPassed is how often a plan is made anew at a time.
const mostPassed = 3

// deliver delivers one plan for a target: the given one, or the one that Redis has. rest says when
// to look for other parcels for it: 0: there are none, noRest: now.
func (t *Topic) deliver(ctx context.Context, target string, given script.Reply) (rest time.Duration, err error) {
	passed, floor := "", uint64(0)
	for range mostPassed {
		r := given
		if given = nil; r == nil {
			if r, err = t.parcelPlan(ctx, target, rand.Text()[:13], passed, floor); err != nil {
				return 0, err
			}
		}
		parcels, tag := r.List(2).Texts(), r.Text(4)
		if len(parcels) == 0 {
			return 0, nil
		}
		number, _ := strconv.ParseUint(r.Text(3), 10, 64) // the script has written it
		refused, failed := t.send(ctx, target, commit.Plan{Series: "~" + t.Keys.Topic, Number: number, Tag: tag}, r.Now(), parcels)
		switch {
		case errors.Is(failed, commit.ErrPassed):
			// This relay is late, or the topic or its target was restored from a copy.
			passed, floor = tag, passedAt(failed)
			continue
		case failed != nil:
			return 0, failed
		}
		return t.parcelDone(ctx, target, r.Text(3), tag, refused)
	}
	return 0, fmt.Errorf("relay to %q: %w", target, commit.ErrPassed)
}

// parcelDone ends a plan that is delivered. See deliver about rest.
func (t *Topic) parcelDone(ctx context.Context, target, number, tag string, refused []Undelivered) (rest time.Duration, err error) {
	args := []any{target, number, tag}
	for _, u := range refused {
		text, _ := json.Marshal(u) // strings and a number
		args = append(args, text)
	}
	r, err := t.exec(ctx, topicCall{script: script.ParcelDone}, args...)
	if err != nil {
		return 0, err
	}
	done, more := r.Number(2) > 0, r.Number(3) > 0
	if done {
		t.Loops.relaying.refusals.add(refused)
	}
	switch {
	case !more:
		return 0, nil
	case !done: // another server has ended the plan, and delivers the next one
		return loop.PaceLimit, nil
	}
	return noRest, nil
}

// passedRule finds the number to which a series has come, in the error of prelude/receipt.lua.
var passedRule = regexp.MustCompile(`has come to (\d+)`)

func passedAt(err error) uint64 {
	if m := passedRule.FindStringSubmatch(err.Error()); m != nil {
		number, _ := strconv.ParseUint(m[1], 10, 64)
		if number < math.MaxInt64 {
			return number
		}
	}
	return 0
}

// clip cuts a reason to 500 bytes.
func clip(s string) string {
	const most = 500
	if len(s) > most {
		s = s[:most-3] + "…"
	}
	return strings.ToValidUTF8(s, "")
}
