package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/rig"
)

// schedulers and each are how many there are and how many schedules each has.
const (
	schedulers = 4
	each       = 8

	// ponder is how long a scheduler waits between two calls, on average, and checkEvery the same
	// for the checks of topics.
	ponder     = 300 * time.Millisecond
	checkEvery = 4 * time.Second
)

// A scheduler works on schedules of its own, one call after the other. Names whose call had an
// unknown outcome are given up, and removed.
type scheduler struct {
	r      *rand.Rand
	n      uint64
	made   int
	client *rig.Client
	live   []*rig.Schedule
	held   map[*rig.Schedule]bool // paused
	spent  []string               // names that may be used again
}

// schedule is one scheduler. What it has in the end it pauses, reads for the last time and removes,
// when all is healed.
func (s *Soak) schedule(ctx context.Context, n uint64) (finish func(ctx context.Context) error) {
	rdb := redis.NewClient(&redis.Options{Addr: s.proxies[enqueuers].Addr(), DialTimeout: time.Second, ReadTimeout: time.Second})
	defer func() { _ = rdb.Close() }()
	w := &scheduler{
		r: rand.New(rand.NewPCG(s.Seed, 2000+n)), n: n, held: map[*rig.Schedule]bool{}, //nolint:gosec // not for secrets
		client: rig.NewClient(rdb, s.rec, delayq.Prefix(prefix)),
	}
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(context.Background(), 10*time.Second) // as in load
		w.step(call)
		cancel()
		select {
		case <-time.After(time.Duration(w.r.Int64N(int64(2 * ponder)))):
		case <-ctx.Done():
		}
	}
	return func(ctx context.Context) error {
		w.client = rig.NewClient(s.direct, s.rec, delayq.Prefix(prefix))
		return w.finish(ctx)
	}
}

// step is one random call, and what belongs to it.
func (w *scheduler) step(ctx context.Context) {
	if len(w.live) < each {
		name := fmt.Sprintf("s%d-%d", w.n, w.made)
		if w.made++; w.r.IntN(8) == 0 {
			name += "@!1" // what a job's ID has behind the name
		}
		if len(w.spent) > 0 && w.r.IntN(2) == 0 {
			name, w.spent = w.spent[0], w.spent[1:]
		}
		fresh := w.plan(topics[w.r.IntN(len(topics))], name)
		if w.known(ctx, fresh, w.client.PutSchedule(ctx, fresh)) {
			w.live = append(w.live, fresh)
			w.look(ctx, fresh)
		}
		return
	}
	i := w.r.IntN(len(w.live))
	s := w.live[i]
	pick := w.r.IntN(100)
	if i < each/4 && pick >= 60 { // these are left in peace
		pick = w.r.IntN(60)
	}
	switch {
	case pick < 30:
		w.look(ctx, s)
		return
	case pick < 35:
		var mine []string
		for _, other := range w.live {
			if other.Topic == s.Topic {
				mine = append(mine, other.Name)
			}
		}
		_, _ = w.client.ListSchedules(ctx, s.Topic, mine) // what is wrong is in the history
		return
	case pick < 42:
		_ = w.client.ReadRuns(ctx, s.Topic, s.Name)
		return
	case pick < 60:
		_ = w.client.TriggerSchedule(ctx, s.Topic, s.Name) // a call of unknown outcome does not change the schedule
		return
	case pick < 63: // the same again changes nothing
		w.known(ctx, s, w.client.PutSchedule(ctx, s))
	case pick < 76:
		fresh := w.plan(s.Topic, s.Name)
		if w.known(ctx, s, w.client.PutSchedule(ctx, fresh)) {
			w.live[i], w.held[fresh] = fresh, w.held[s]
			delete(w.held, s)
			s = fresh
		}
	case pick < 92 && w.held[s]:
		if w.known(ctx, s, w.client.LetSchedule(ctx, s.Topic, s.Name)) {
			w.held[s] = false
		}
	case pick < 92:
		if w.known(ctx, s, w.client.HoldSchedule(ctx, s.Topic, s.Name)) {
			w.held[s] = true
		}
	default:
		if w.known(ctx, s, w.client.RemoveSchedule(ctx, s.Topic, s.Name)) {
			w.forget(s)
			w.spent = append(w.spent, s.Name)
		}
		return
	}
	if slices.Contains(w.live, s) {
		w.look(ctx, s)
	}
}

func (w *scheduler) look(ctx context.Context, s *rig.Schedule) {
	_, _ = w.client.ReadSchedule(ctx, s.Topic, s.Name)
}

func (w *scheduler) forget(s *rig.Schedule) {
	w.live = slices.DeleteFunc(w.live, func(other *rig.Schedule) bool { return other == s })
	delete(w.held, s)
}

// known tells whether a call was carried out. If it may have been, the schedule is given up.
func (w *scheduler) known(ctx context.Context, s *rig.Schedule, err error) bool {
	if errors.Is(err, delayq.ErrUnknownOutcome) {
		w.forget(s)
		_ = w.client.RemoveSchedule(ctx, s.Topic, s.Name) // else it is removed in the end
	}
	return err == nil
}

// finish reads the books of all schedules for the last time and removes them.
func (w *scheduler) finish(ctx context.Context) error {
	for _, s := range w.live {
		if err := w.client.HoldSchedule(ctx, s.Topic, s.Name); err != nil {
			return err
		}
		w.look(ctx, s)
		_ = w.client.ReadRuns(ctx, s.Topic, s.Name)
		if err := w.client.RemoveSchedule(ctx, s.Topic, s.Name); err != nil {
			return err
		}
	}
	return nil
}

// unschedule removes the schedules that were given up.
func (s *Soak) unschedule(ctx context.Context) error {
	client := rig.NewClient(s.direct, s.rec, delayq.Prefix(prefix))
	for _, topic := range topics {
		all, err := client.ListSchedules(ctx, topic, nil)
		if err != nil {
			return err
		}
		for _, name := range all {
			if err := client.RemoveSchedule(ctx, topic, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// checks looks through the topics now and then, without repair.
func (s *Soak) checks(ctx context.Context) {
	r := rand.New(rand.NewPCG(s.Seed, 3000)) //nolint:gosec // not for secrets
	client := rig.NewClient(s.direct, s.rec, delayq.Prefix(prefix))
	for {
		select {
		case <-time.After(time.Duration(r.Int64N(int64(2 * checkEvery)))):
		case <-ctx.Done():
			return
		}
		call, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		_ = client.Look(call, all[r.IntN(len(all))]) // Redis may be away
		cancel()
	}
}

// plan makes a schedule at random.
func (w *scheduler) plan(topic, name string) *rig.Schedule {
	r := w.r
	s := &rig.Schedule{Name: name, Task: rig.Task{Topic: topic, Retries: -1}}
	switch r.IntN(4) {
	case 0: // seconds of every minute
		for step, at := 1+r.IntN(5), r.IntN(3); at < 60; at += step {
			s.Seconds = append(s.Seconds, at)
		}
	case 1: // odd seconds
		for at := range 60 {
			if r.IntN(3) == 0 || at == 17 {
				s.Seconds = append(s.Seconds, at)
			}
		}
	default:
		s.Every = 200 + r.Int64N(4801)
	}
	s.Overlap = []string{"allow", "skip", "queue", "cancel"}[r.IntN(4)]
	switch s.Missed = []string{"once", "skip", "catch up"}[r.IntN(3)]; s.Missed {
	case "catch up":
		s.CatchUp = 1 + r.IntN(12)
	}
	kinds := []struct {
		weight  int
		steps   []string
		retries int
		timeout time.Duration
	}{
		{40, []string{"ok"}, -1, 0},
		{10, []string{"hang:150ms"}, -1, 0},
		{10, []string{"hang:800ms"}, -1, 0},
		{8, []string{"err", "ok"}, -1, 0},
		{4, []string{"panic", "ok"}, 3, 0},
		{3, []string{"goexit", "ok"}, -1, 0},
		{3, []string{"err"}, 1, 0},
		{2, []string{"perm"}, -1, 0},
		{5, []string{"snooze:300ms"}, -1, 0},
		{4, []string{"hang:5s", "ok"}, -1, 200 * time.Millisecond},
		{2, []string{"hang:3s"}, -1, 0}, // longer than the lease
	}
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	n := r.IntN(total)
	for _, k := range kinds {
		if n -= k.weight; n < 0 {
			s.Steps, s.Retries = k.steps, k.retries
			if k.timeout > 0 {
				s.Options = append(s.Options, delayq.Timeout(k.timeout))
			}
			break
		}
	}
	switch r.IntN(12) {
	case 0:
		s.Expires = time.Second
	case 1:
		s.Delay = 100 * time.Millisecond
	case 2:
		s.Options = append(s.Options, delayq.Retention(time.Second))
	}
	s.Options = append(s.Options, delayq.Backoff(backoffMin, backoffMax))
	return s
}
