package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/rig"
)

// pause is how long an enqueuer waits between two calls, on average, if nothing else is said.
const pause = 12 * time.Millisecond

// An enqueuer works on IDs of its own, one call after the other. An ID whose call had an unknown
// outcome is never used again: the call may still arrive.
type enqueuer struct {
	r      *rand.Rand
	n      uint64
	made   int
	client caller
	live   []*rig.Task
	come   func(guest string)
	box    *rig.Box // not nil: client is a transaction of it
}

// A caller is what an enqueuer calls: a client, or a transaction of an outbox.
type caller interface {
	Put(ctx context.Context, t *rig.Task, replace bool) error
	PutOverDead(ctx context.Context, t *rig.Task) error
	Cancel(ctx context.Context, t *rig.Task) (delayq.State, error)
	Move(ctx context.Context, t *rig.Task, delay time.Duration) error
}

// load is one enqueuer. Most share a connection pool of the usual size; one has a pool of two.
func (s *Soak) load(ctx context.Context, n uint64) error {
	opts := &redis.Options{Addr: s.proxies[enqueuers].Addr(), DialTimeout: time.Second, ReadTimeout: time.Second}
	if n == 0 {
		opts.PoolSize = 2
	}
	rdb := redis.NewClient(opts)
	defer func() { _ = rdb.Close() }()
	e := &enqueuer{
		r: rand.New(rand.NewPCG(s.Seed, n)), n: n, box: s.box, come: s.come, //nolint:gosec // not for secrets
		client: rig.NewClient(rdb, s.rec, delayq.Prefix(prefix), delayq.MaxPayload(rig.MaxPayload)),
	}
	for ctx.Err() == nil {
		// Not ctx: a call that is cut off at the end would only be one more unknown outcome.
		call, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		var err error
		if e.box != nil {
			err = e.transaction(call)
		} else {
			e.step(call)
		}
		cancel()
		if err != nil {
			return fmt.Errorf("enqueuer %d: %w", n, err)
		}
		select {
		case <-time.After(time.Duration(e.r.Int64N(int64(2 * s.pause())))):
		case <-ctx.Done():
		}
	}
	return nil
}

// transaction is a few steps whose rows are committed together, or rolled back: some because the
// database is away. Its error is that of a database that does not come back, or of a call that the
// outbox refuses.
func (e *enqueuer) transaction(ctx context.Context) error {
	tx, err := e.box.Begin(ctx)
	if err != nil {
		wait(ctx, 100*time.Millisecond)
		return nil //nolint:nilerr // nothing has been written
	}
	before := slices.Clone(e.live)
	e.client = tx
	commit := e.r.IntN(8) > 0
	for range 1 + e.r.IntN(3) {
		err := e.step(ctx)
		if errors.Is(err, delayq.ErrInvalid) {
			return errors.Join(err, tx.Rollback())
		}
		if err != nil {
			commit = false
			break
		}
	}
	committed, err := tx.End(commit)
	if !committed {
		e.live = before
	}
	return err
}

// step is one random call, or a few that belong together. It returns the error of the last one.
func (e *enqueuer) step(ctx context.Context) error {
	if len(e.live) > 200 {
		e.live = e.live[100:] // long done, most of them
	}
	pick := e.r.IntN(100)
	if len(e.live) == 0 || pick < 66 {
		t := e.task(e.topic(), fmt.Sprintf("%d-%d", e.n, e.made))
		e.made++
		err := e.client.Put(ctx, t, false)
		if err == nil && t.Left == 0 {
			e.live = append(e.live, t)
		}
		return err
	}
	i := e.r.IntN(len(e.live))
	if e.r.IntN(2) == 0 { // rather a new one, which is still there
		i = len(e.live) - 1
	}
	t := e.live[i]
	var err error
	switch {
	case pick < 76:
		_, err = e.client.Cancel(ctx, t)
	case pick < 82: // cancelled, and a moment later here again
		if _, err = e.client.Cancel(ctx, t); err == nil {
			return e.again(ctx, i, e.put)
		}
	case pick < 90:
		err = e.client.Move(ctx, t, e.delay())
	case pick < 95:
		n := len(e.live)
		if err = e.again(ctx, i, e.replace); len(e.live) == n && e.live[i].Expires > 0 { // else the old job stays
			e.sent(i, err)
		}
		return err
	case pick < 98:
		i = e.dead(i)
		err = e.again(ctx, i, e.client.PutOverDead)
		e.sent(i, err)
		return err
	default:
		err = e.again(ctx, i, e.put) // the same
		e.sent(i, err)
		return err
	}
	if errors.Is(err, delayq.ErrUnknownOutcome) {
		e.retire(i)
	}
	return err
}

// sent retires an ID whose row can be refused: which of two jobs has it is known only later.
func (e *enqueuer) sent(i int, err error) {
	if e.box != nil && err == nil {
		e.retire(i)
	}
}

// dead is the number of a job that is dead, or soon will be, or the given one.
func (e *enqueuer) dead(i int) int {
	for n, t := range e.live {
		if t.Retries >= 0 && len(t.Steps) == 1 || t.Steps[0] == "perm" {
			return n
		}
	}
	return i
}

func (e *enqueuer) put(ctx context.Context, t *rig.Task) error     { return e.client.Put(ctx, t, false) }
func (e *enqueuer) replace(ctx context.Context, t *rig.Task) error { return e.client.Put(ctx, t, true) }

// again enqueues another incarnation of an ID.
func (e *enqueuer) again(ctx context.Context, i int, put func(context.Context, *rig.Task) error) error {
	fresh := e.task(e.live[i].Topic, e.live[i].ID)
	fresh.Left = 0 // this ID is ours
	err := put(ctx, fresh)
	switch {
	case err == nil:
		e.live[i] = fresh
	case errors.Is(err, delayq.ErrUnknownOutcome):
		e.retire(i)
	}
	return err
}

func (e *enqueuer) retire(i int) {
	e.live[i] = e.live[len(e.live)-1]
	e.live = e.live[:len(e.live)-1]
}

func (e *enqueuer) delay() time.Duration {
	switch n := e.r.IntN(100); {
	case n < 40:
		return 0
	case n < 70:
		return time.Duration(e.r.Int64N(int64(200 * time.Millisecond))).Truncate(time.Millisecond)
	case n < 95:
		return time.Duration(e.r.Int64N(int64(3 * time.Second))).Truncate(time.Millisecond)
	}
	return time.Duration(e.r.Int64N(int64(maxDelay))).Truncate(time.Millisecond)
}

// scripts are what tasks do, each as often as its weight says.
var scripts = []struct {
	weight  int
	steps   []string
	retries int
	timeout time.Duration
}{
	{50, []string{"ok"}, -1, 0},
	{8, []string{"err", "ok"}, -1, 0},
	{3, []string{"err", "err", "ok"}, 5, 0},
	{3, []string{"panic", "ok"}, -1, 0},
	{3, []string{"goexit", "ok"}, -1, 0},
	{2, []string{"perm"}, -1, 0},
	{2, []string{"err"}, 1, 0},
	{1, []string{"err"}, 0, 0},
	{5, []string{"snooze:300ms"}, -1, 0},
	{8, []string{"hang:150ms"}, -1, 0},
	{5, []string{"hang:800ms"}, -1, 0},
	{5, []string{"steps:200ms"}, -1, 0},
	{4, []string{"half:100ms", "steps:400ms"}, -1, 0},
	{1, []string{"steps:5s"}, -1, 0}, // longer than the lease
	{2, []string{"steps:2s", "steps:100ms"}, -1, 800 * time.Millisecond},
	{1, []string{"half:40ms"}, 1, 0},
	{2, []string{"hang:5s"}, -1, 0}, // longer than the lease
	{4, []string{"hang:5s", "ok"}, -1, 200 * time.Millisecond},
	{1, []string{"deaf:3s", "ok"}, -1, 300 * time.Millisecond},
	{4, []string{"renew:0s"}, -1, 0},
	{4, []string{"renew:150ms"}, -1, 0},
	{2, []string{"err", "renew:50ms"}, -1, 0},
	{4, []string{"again:0s"}, -1, 0},
	{4, []string{"again:150ms"}, -1, 0},
	{2, []string{"err", "again:50ms"}, 3, 0},
	{6, []string{"hold:50ms"}, -1, 0},
	{6, []string{"holdkey:200ms"}, -1, 0},
}

// sizes are how much larger payloads are than they must be, each as often as its weight says.
var sizes = []struct{ weight, most int }{
	{1000, 0}, {300, 10 << 10}, {60, 200 << 10}, {8, 1 << 20}, {2, 4 << 20},
}

// keys are those of half of the jobs. Another incarnation of an ID can have another key or none.
var keys = []string{"tenant-1", "tenant-2", "tenant-10", "t"}

// generations is how often a task that renews itself does so at most.
const generations = 8

// exitOften is one in how many tasks ends its process.
const exitOften = 2000

// pad is how much larger a payload is to be.
func (e *enqueuer) pad() int {
	total := 0
	for _, s := range sizes {
		total += s.weight
	}
	n := e.r.IntN(total)
	for _, s := range sizes {
		if n -= s.weight; n < 0 {
			return e.r.IntN(s.most + 1)
		}
	}
	return 0
}

// topic is where a job goes. Half of the jobs go to the few, a tenth to guests, and the others to
// the crowd.
func (e *enqueuer) topic() string {
	switch n := e.r.IntN(10); {
	case n < 5:
		return few[e.r.IntN(len(few))]
	case n < 6:
		return e.guest()
	}
	return crowd[e.r.IntN(len(crowd))]
}

// fits tells whether tasks of a topic do such steps, with so many retries. A batch takes as long as
// all its jobs do, and no job of it can replace itself. A job with an order makes all others of its
// key wait. Jobs of guests do not die.
func fits(topic string, steps []string, retries int) bool {
	if isGuest(topic) && (retries >= 0 || steps[0] == "perm") {
		return false
	}
	batches := topic == batched || topic == gathered
	return !slices.ContainsFunc(steps, func(step string) bool {
		verb, arg, _ := strings.Cut(step, ":")
		d, _ := time.ParseDuration(arg) // 0: it has none
		switch verb {
		case "renew":
			return batches
		case "hang", "deaf", "steps", "half":
			return batches && d > time.Second/2 || topic == ordered && d > time.Second
		case "hold":
			return topic != batched && topic != limited
		case "holdkey":
			return !slices.Contains(bounded, topic)
		}
		return false
	})
}

// hand is what the runs of a task hand over: half of it to another topic.
func (e *enqueuer) hand() *rig.Hand {
	hand := &rig.Hand{Hops: e.r.IntN(3)}
	if e.r.IntN(2) == 0 {
		hand.Topic = e.topic()
	}
	if e.r.IntN(2) == 0 {
		hand.Delay = time.Duration(e.r.Int64N(int64(time.Second))).Truncate(time.Millisecond)
	}
	return hand
}

func (e *enqueuer) task(topic, id string) *rig.Task {
	t := &rig.Task{Topic: topic, ID: id, Delay: e.delay(), Retries: -1}
	total := 0
	for _, s := range scripts {
		if fits(t.Topic, s.steps, s.retries) {
			total += s.weight
		}
	}
	n := e.r.IntN(total)
	for _, s := range scripts {
		if !fits(t.Topic, s.steps, s.retries) {
			continue
		}
		if n -= s.weight; n < 0 {
			t.Steps, t.Retries = s.steps, s.retries
			if s.timeout > 0 {
				t.Options = append(t.Options, delayq.Timeout(s.timeout))
			}
			break
		}
	}
	if last := t.Steps[len(t.Steps)-1]; strings.HasPrefix(last, "renew:") || strings.HasPrefix(last, "again:") {
		t.Left = 1 + e.r.IntN(generations)
	}
	t.Pad = e.pad()
	t.Empty = t.Pad == 0 && e.r.IntN(4) == 0
	if e.r.IntN(exitOften) == 0 {
		t.Steps, t.Retries = []string{"exit", "ok"}, -1
	}
	if e.r.IntN(8) == 0 {
		t.Then = e.hand()
	}
	if t.Left == 0 && e.r.IntN(50) == 0 { // else its successors would expire too
		t.Expires = t.Delay + time.Second
	}
	if e.r.IntN(50) == 0 && !isGuest(topic) {
		t.Options = append(t.Options, delayq.Retention(time.Second))
	}
	if e.r.IntN(2) == 0 {
		t.Options = append(t.Options, delayq.Key(e.key(t)))
	}
	t.Options = append(t.Options, delayq.Backoff(backoffMin, backoffMax))
	return t
}
