package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/check"
	"github.com/delayq/delayq/faults/rig"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/sqltest"
)

// What the workers and jobs are like. Short times, so that much happens in a minute.
const (
	prefix     = "soak"
	workers    = 3
	slots      = 8
	lease      = 2 * time.Second
	drain      = time.Second
	backoffMin = 200 * time.Millisecond
	backoffMax = 2 * time.Second
	maxDelay   = 10 * time.Second
	deadLimit  = 20 // of each topic

	// drainLimit is how long the queue may take to become empty after the last fault.
	drainLimit = 60 * time.Second
	// aliveLimit is how long a worker may take to work again after the last fault.
	aliveLimit = 10 * time.Second
)

// few are the topics that all workers serve: topics, the ones with limits, and gathered. crowd are
// further ones, which the first workers serve. Those wait for rings, because they have so many
// topics. The last worker blocks.
var (
	topics = []string{"a", "b"}
	crowd  = crowdOf(50)
	few    = slices.Concat(topics, bounded, []string{gathered})
	all    = slices.Concat(few, crowd)
)

// crowded is how many workers serve the crowd.
const crowded = workers - 1

func crowdOf(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("crowd%02d", i))
	}
	return names
}

// A Soak is one run.
type Soak struct {
	Seed uint64
	Dir  string
	For  time.Duration
	Log  io.Writer

	// Outbox makes the rows of an outbox the only way in for the jobs of the enqueuers.
	Outbox bool

	// Steady leaves the database of the outbox without faults.
	Steady bool

	// Pause is how long an enqueuer waits between two calls, on average. 0: as long as usually.
	Pause time.Duration

	// Sabotage, for the negative control, is called once in the middle with a direct connection to
	// Redis.
	Sabotage func(ctx context.Context, rdb *redis.Client) error

	server  *redistest.Server
	direct  *redis.Client // past the proxies
	rec     *rig.Recorder
	history *rig.History
	proxies map[string]*rig.Proxy   // by the process they serve
	workers []*rig.Worker           // with an outbox, its relays after them
	box     *rig.Box                // nil: no outbox
	db      *sqltest.PostgresServer // of the outbox; nil: it is a file

	mu       sync.Mutex
	expected map[string]bool // workers whose end is wanted
	crashes  []check.Violation
	guests   []string
}

// enqueuers is the name of the enqueuers' side.
const enqueuers = "enqueuers"

// Run runs it. The report has the violations; the error is about the rig itself.
func (s *Soak) Run(ctx context.Context) (report *check.Report, err error) {
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.up(); err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	keepCtx, endKeep := context.WithCancel(ctx)
	defer wg.Wait()
	defer endKeep()
	for _, w := range s.workers {
		wg.Go(func() { s.keep(keepCtx, w) })
	}

	load, stopLoad := context.WithTimeout(ctx, s.For)
	defer stopLoad()
	var loading sync.WaitGroup
	var loadErrs [5]error
	for i := range 4 {
		loading.Go(func() { loadErrs[i] = s.load(load, uint64(i)) }) //nolint:gosec // small
	}
	if s.box != nil {
		wg.Go(func() { loadErrs[4] = s.box.Follow(keepCtx, max(10*time.Millisecond, s.pause()/2)) })
	}
	var mu sync.Mutex
	var finish []func(ctx context.Context) error
	for i := range schedulers {
		loading.Go(func() {
			f := s.schedule(load, uint64(i)) //nolint:gosec // small
			mu.Lock()
			defer mu.Unlock()
			finish = append(finish, f)
		})
	}
	loading.Go(func() { s.checks(load) })
	var callErrs [2]error
	for i := range callErrs {
		loading.Go(func() { callErrs[i] = s.call(load, uint64(i)) }) //nolint:gosec // small
	}
	var leaveErr error
	loading.Go(func() { leaveErr = s.leave(load) })
	var holdErrs [4]error
	for i := range holdErrs {
		loading.Go(func() { holdErrs[i] = s.hold(load, uint64(i)) }) //nolint:gosec // small
	}
	keyErrs := make([]error, len(bounded))
	for i, topic := range bounded {
		loading.Go(func() { keyErrs[i] = s.holdKeys(load, topic, uint64(i)) }) //nolint:gosec // small
	}
	wg.Go(func() { s.sample(keepCtx) })
	wg.Go(func() { s.rec.Stalls(keepCtx, "", func(ctx context.Context) { s.direct.Ping(ctx) }) })
	if s.Sabotage != nil {
		loading.Go(func() {
			select {
			case <-time.After(s.For / 2):
				err = s.Sabotage(ctx, s.direct)
			case <-load.Done():
			}
		})
	}
	nemesisErr := s.nemesis(load)
	loading.Wait()
	if err := errors.Join(nemesisErr, leaveErr, err, ctx.Err(), errors.Join(holdErrs[:]...), errors.Join(keyErrs...), errors.Join(loadErrs[:4]...), errors.Join(callErrs[:]...)); err != nil {
		return nil, err
	}
	alive, err := s.alive(ctx)
	if err != nil {
		return nil, err
	}
	for _, f := range append(finish, s.unschedule) {
		if err := f(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.drained(ctx); err != nil {
		return nil, err
	}
	client := rig.NewClient(s.direct, s.rec, delayq.Prefix(prefix))
	for _, topic := range all {
		if err := client.Look(ctx, topic); err != nil {
			return nil, err
		}
	}
	endKeep()
	wg.Wait()
	stopped, err := s.stopWorkers()
	if err != nil {
		return nil, err
	}
	rows, err := s.boxLeft(ctx)
	if err := errors.Join(err, loadErrs[4]); err != nil {
		return nil, err
	}
	left, err := s.left(ctx)
	if err != nil {
		return nil, err
	}
	return s.judge(ctx, slices.Concat(alive, stopped, s.crashes, rows, left))
}

func (s *Soak) up() (err error) {
	if s.server, err = redistest.StartE(filepath.Join(s.Dir), redistest.AOF...); err != nil {
		return err
	}
	s.direct = redis.NewClient(s.server.Options())
	s.history = rig.NewHistory(s.Dir)
	if s.rec, err = rig.NewRecorder(s.Dir, enqueuers); err != nil {
		return err
	}
	s.proxies, s.expected = make(map[string]*rig.Proxy), make(map[string]bool)
	if s.proxies[enqueuers], err = rig.NewProxy(s.server.Addr()); err != nil {
		return err
	}
	for i := range workers {
		name, served := fmt.Sprintf("worker%d", i+1), all
		if i >= crowded {
			served = few
		}
		p, err := rig.NewProxy(s.server.Addr())
		if err != nil {
			return err
		}
		s.proxies[name] = p
		w, err := rig.StartWorker(rig.WorkerConfig{
			Name: name, Dir: s.Dir, Redis: rig.Redis{Addr: p.Addr()}, Prefix: prefix, Topics: append(slices.Clone(served), guests+"*"),
			Batch: map[string]int{batched: batchSize, gathered: batchSize}, Gather: map[string]delayq.GatherWindow{gathered: window},
			Slots: slots, Lease: lease, Drain: drain, Dead: deadLimit,
		}, s.rec)
		if err != nil {
			return err
		}
		s.workers = append(s.workers, w)
	}
	for topic := range limits {
		if err := limit(context.Background(), delayq.NewClient(s.direct, delayq.Prefix(prefix)), topic); err != nil {
			return err
		}
	}
	if s.Outbox {
		return s.upBox()
	}
	return nil
}

func (s *Soak) close() error {
	var errs []error
	for _, w := range s.workers {
		errs = append(errs, w.Kill())
	}
	for _, p := range s.proxies {
		errs = append(errs, p.Close())
	}
	if s.box != nil {
		errs = append(errs, s.box.DB.Close())
	}
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	if s.direct != nil {
		errs = append(errs, s.direct.Close())
	}
	if s.rec != nil {
		errs = append(errs, s.rec.Close())
	}
	if s.server != nil {
		errs = append(errs, s.server.Close())
	}
	return errors.Join(errs...)
}

// keep starts a worker again whenever it has ended, like a supervisor.
func (s *Soak) keep(ctx context.Context, w *rig.Worker) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.Ended():
		}
		s.mu.Lock()
		wanted := s.expected[w.Name()]
		s.expected[w.Name()] = false
		s.mu.Unlock()
		if !wanted { // by itself: a task told it to, or it is broken
			s.rec.Record(rig.Event{Op: rig.OpFault, Result: "exit", ID: w.Name()})
			s.rec.Record(rig.Event{Op: rig.OpHeal, Result: "exit", ID: w.Name()})
			if code := w.Code(); code != 3 {
				s.mu.Lock()
				s.crashes = append(s.crashes, check.Violation{
					Rule: "I15", Text: fmt.Sprintf("%s ended by itself with code %d: %s", w.Name(), code, w.Tail(2000)),
				})
				s.mu.Unlock()
			}
		}
		if err := w.Start(); err != nil {
			_, _ = fmt.Fprintln(s.Log, "start again:", err)
			return
		}
	}
}

// alive sees whether each worker works again after the last fault: it gives all slots of all
// workers something to do.
func (s *Soak) alive(ctx context.Context) (violations []check.Violation, err error) {
	since := rig.Mono()
	var tasks []*rig.Task
	for i := range 2 * workers * slots {
		tasks = append(tasks, &rig.Task{Topic: topics[i%len(topics)], ID: fmt.Sprintf("probe-%d", i), Steps: []string{"hang:200ms"}, Retries: -1})
	}
	if err := s.put(ctx, tasks); err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	for _, w := range s.workers[:workers] {
		found, err := s.history.Await(aliveLimit, func(events []rig.Event) bool {
			return slices.ContainsFunc(events, func(e rig.Event) bool {
				return e.Op == rig.OpStart && e.Proc == w.Name() && e.Mono > since
			})
		})
		if err != nil {
			return nil, err
		}
		if !found {
			violations = append(violations, check.Violation{
				Rule: "I13", Text: fmt.Sprintf("%s did not work again within %v: %s", w.Name(), aliveLimit, w.Tail(2000)),
			})
		}
	}
	return violations, nil
}

// put enqueues tasks by the way in.
func (s *Soak) put(ctx context.Context, tasks []*rig.Task) error {
	client := caller(rig.NewClient(s.direct, s.rec, delayq.Prefix(prefix)))
	var tx *rig.BoxTx
	if s.box != nil {
		var err error
		// A connection of before the last fault can be left.
		for range 100 {
			if tx, err = s.box.Begin(ctx); err == nil || !wait(ctx, 100*time.Millisecond) {
				break
			}
		}
		if err != nil {
			return err
		}
		client = tx
	}
	for _, task := range tasks {
		if err := client.Put(ctx, task, false); err != nil {
			return err
		}
	}
	if tx != nil {
		if committed, err := tx.End(true); err != nil || !committed {
			return errors.Join(errors.New("the transaction was not committed"), err)
		}
	}
	return nil
}

// pause is how long an enqueuer waits between two calls, on average.
func (s *Soak) pause() time.Duration {
	if s.Pause > 0 {
		return s.Pause
	}
	return pause
}

// drained waits until all rows are sent and Redis holds no job but dead ones. What is left at the
// limit is for the check to name.
func (s *Soak) drained(ctx context.Context) error {
	for deadline := time.Now().Add(drainLimit); time.Now().Before(deadline); {
		state, err := check.Read(ctx, s.direct, prefix)
		if err != nil {
			return err
		}
		left, err := s.boxLeft(ctx)
		if err != nil {
			return err
		}
		if len(left) == 0 && len(check.Empty(state)) == 0 && !slices.ContainsFunc(all, func(t string) bool {
			return state.Topics[t] != nil && len(state.Topics[t].Dead) > deadLimit
		}) {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// stopWorkers stops the workers in order and sees whether they end as they should.
func (s *Soak) stopWorkers() (violations []check.Violation, err error) {
	for _, w := range s.workers {
		if err := w.Term(); err != nil {
			return nil, err
		}
	}
	for _, w := range s.workers {
		if err := w.AwaitEnd(drain + 5*time.Second); err != nil {
			violations = append(violations, check.Violation{Rule: "I15", Text: err.Error() + ": " + w.Tail(2000)})
			continue
		}
		if code := w.Code(); code != 0 {
			violations = append(violations, check.Violation{Rule: "I15", Text: fmt.Sprintf("%s ended with code %d: %s", w.Name(), code, w.Tail(2000))})
		}
		if crash := w.Crashes(); crash != "" {
			violations = append(violations, check.Violation{Rule: "I15", Text: w.Name() + ": " + crash})
		}
	}
	return violations, nil
}

// options say what the checker cannot know.
var options = check.Options{Lease: lease, BackoffMin: backoffMin, Snooze: rig.SnoozeBit, DeadLimit: deadLimit, Limits: limits}

// recheck judges a history that was kept. Without the state, of the dead only those are known whose
// burial was noted.
func (s *Soak) recheck() (*check.Report, error) {
	events, err := s.history.Events()
	if err != nil {
		return nil, err
	}
	return check.Check(events, nil, options), nil
}

// forbidden are commands whose cost grows with the queue.
var forbidden = []string{"keys", "smembers", "hgetall", "sort", "flushall", "flushdb"}

func (s *Soak) judge(ctx context.Context, more []check.Violation) (*check.Report, error) {
	state, err := check.Read(ctx, s.direct, prefix)
	if err != nil {
		return nil, err
	}
	events, err := s.history.Events()
	if err != nil {
		return nil, err
	}
	report := check.Check(events, state, options)
	report.Violations = append(report.Violations, more...)
	stats, err := s.direct.Info(ctx, "commandstats").Result()
	if err != nil {
		return nil, err
	}
	for _, name := range forbidden {
		if strings.Contains(stats, "cmdstat_"+name+":") {
			report.Violations = append(report.Violations, check.Violation{Rule: "I14", Text: "the command " + name + " was used"})
		}
	}
	return report, nil
}

// related tells whether an ID is that of a job of a schedule and the other one that schedule's
// name.
func related(id, name string) bool {
	cut := strings.LastIndexAny(id, "@!")
	return cut > 0 && id[:cut] == name
}

// Story is all that happened to the job of a violation.
func (s *Soak) Story(v check.Violation) string {
	events, err := s.history.Events()
	if err != nil || v.ID == "" {
		return ""
	}
	var b strings.Builder
	for _, e := range events {
		if e.Topic == v.Topic && (e.ID == v.ID || related(v.ID, e.ID)) || e.Op == rig.OpFault || e.Op == rig.OpHeal {
			raw, _ := json.Marshal(e) // numbers and strings
			fmt.Fprintf(&b, "%s\n", raw)
		}
	}
	return b.String()
}
