// Command fleet is a server or a client of a mixed fleet, for TestReleasesSideBySide. It is built
// with this library and rig, and with those of an earlier release. So it uses only what that
// release has, and the two agree on the JSON of a [rig.WorkerConfig], a [rig.Event] and a config.
//
// Without an argument it is a server, as [rig.WorkerMain] makes it. Its argument is the config of a
// client as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/rig"
)

// A config says what a client does.
type config struct {
	Name   string // of the process in the history
	Dir    string // of the history
	Redis  rig.Redis
	Prefix string
	Seed   uint64
	Peer   string // the client that acts on some of the jobs of this one; it can be this one
	Limits map[string]limits
}

// limits are those that the client sets before it says that it is up.
type limits struct {
	Running, PerKey int
	Starts, Burst   int // in a second; 0: no rate
	Ordered         bool
}

// A handover is a job that a client leaves to its peer, which acts on it once. It has one
// incarnation until then.
type handover struct {
	Topic, ID string
	Inc       int64
	Act       string // cancel, move or replace
}

func main() {
	rig.WorkerMain()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return errors.New("want a config as the only argument")
	}
	var c config
	if err := json.Unmarshal([]byte(os.Args[1]), &c); err != nil {
		return err
	}
	rec, err := rig.NewRecorder(c.Dir, c.Name)
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // returns when the parent is gone
		os.Exit(2)
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	rdb := c.Redis.Client()
	defer func() { _ = rdb.Close() }()
	p := &producer{
		config: c, rdb: rdb, client: rig.NewClient(rdb, rec, delayq.Prefix(c.Prefix)),
		r: rand.New(rand.NewPCG(c.Seed, 0)), //nolint:gosec // not for secrets
	}
	return errors.Join(p.produce(ctx, rec), rec.Close())
}

// A producer works on IDs of its own, and on those that its peer hands over, one call after the
// other.
type producer struct {
	config
	rdb    redis.UniversalClient
	client *rig.Client
	r      *rand.Rand
	made   int
	live   []*rig.Task
}

// pause is how long a producer waits between two steps, on average.
const pause = 8 * time.Millisecond

// produce sets limits, waits for the word to begin, and makes random calls until ctx is done.
func (p *producer) produce(ctx context.Context, rec *rig.Recorder) error {
	for topic, l := range p.Limits {
		if err := p.limit(ctx, topic, l); err != nil {
			return err
		}
	}
	rec.Record(rig.Event{Op: rig.OpUp})
	if err := p.rdb.BLPop(ctx, 0, "begin:"+p.Name).Err(); err != nil {
		return err
	}
	s := &rig.Schedule{
		Plan: rig.Plan{Every: 250, Overlap: "allow", Missed: "catch up", CatchUp: 100},
		Task: rig.Task{Topic: "plain", Steps: []string{"ok"}, Retries: -1}, Name: p.Name,
	}
	call := context.Background() // a call that is cut off at the end would be an unknown outcome
	if err := p.client.PutSchedule(call, s); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := p.step(call); err != nil {
			return err
		}
		select {
		case <-time.After(time.Duration(p.r.Int64N(int64(2 * pause)))):
		case <-ctx.Done():
		}
	}
	if err := p.client.HoldSchedule(call, s.Topic, s.Name); err != nil {
		return err
	}
	if _, err := p.client.ReadSchedule(call, s.Topic, s.Name); err != nil {
		return err
	}
	return p.client.RemoveSchedule(call, s.Topic, s.Name)
}

func (p *producer) limit(ctx context.Context, topic string, l limits) error {
	set := delayq.Limits{Running: l.Running, RunningPerKey: l.PerKey, Ordered: l.Ordered}
	if l.Starts > 0 {
		set.Rate = delayq.Per(l.Starts, time.Second).Burst(l.Burst)
	}
	return p.client.SetLimits(ctx, topic, set)
}

// step is one random call, and one on a job that the peer has handed over, if there is any.
func (p *producer) step(ctx context.Context) error {
	if err := p.take(ctx); err != nil {
		return err
	}
	if len(p.live) > 100 {
		p.live = p.live[50:] // long done, most of them
	}
	pick := p.r.IntN(100)
	switch {
	case pick < 20:
		return p.hand(ctx)
	case pick < 23:
		return p.client.TriggerSchedule(ctx, "plain", p.Name)
	case pick < 75 || len(p.live) == 0:
		t := p.task(topics[p.r.IntN(len(topics))], p.id())
		if t.Left == 0 { // else its successors have its ID
			p.live = append(p.live, t)
		}
		return p.client.Put(ctx, t, false)
	}
	i := len(p.live) - 1 - p.r.IntN(min(len(p.live), 10))
	t := p.live[i]
	switch {
	case pick < 83:
		_, err := p.client.Cancel(ctx, t)
		return passed(err)
	case pick < 91:
		return passed(p.client.Move(ctx, t, p.delay()))
	}
	p.live[i] = p.task(t.Topic, t.ID)
	for p.live[i].Left > 0 {
		p.live[i] = p.task(t.Topic, t.ID)
	}
	return p.client.Put(ctx, p.live[i], true)
}

// passed leaves out the errors that say that the job has moved on.
func passed(err error) error {
	for _, fine := range []error{delayq.ErrNotFound, delayq.ErrRunning, delayq.ErrDead} {
		if errors.Is(err, fine) {
			return nil
		}
	}
	return err
}

func (p *producer) id() string {
	p.made++
	return fmt.Sprintf("%s-%d", p.Name, p.made)
}

// hand enqueues a job and leaves it to the peer. Many of them run when the peer acts, and ignore
// that for a while.
func (p *producer) hand(ctx context.Context) error {
	acts := []string{"cancel", "cancel", "move", "replace"}
	h := handover{Topic: topics[p.r.IntN(len(topics))], ID: p.id(), Act: acts[p.r.IntN(len(acts))]}
	t := p.task(h.Topic, h.ID)
	t.Left, t.Steps = 0, []string{"deaf:150ms"}
	if h.Act == "move" {
		t.Delay += 100 * time.Millisecond
	}
	if err := p.client.Put(ctx, t, false); err != nil {
		return err
	}
	h.Inc = t.Inc
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return p.rdb.RPush(ctx, "handover:"+p.Peer, text).Err()
}

// take acts on the oldest job that the peer has handed over.
func (p *producer) take(ctx context.Context) error {
	text, err := p.rdb.LPop(ctx, "handover:"+p.Name).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil
	}
	var h handover
	if err == nil {
		err = json.Unmarshal(text, &h)
	}
	if err != nil {
		return err
	}
	t := &rig.Task{Topic: h.Topic, ID: h.ID, Inc: h.Inc}
	switch h.Act {
	case "cancel":
		_, err = p.client.Cancel(ctx, t)
		return passed(err)
	case "move":
		return passed(p.client.Move(ctx, t, p.delay()))
	}
	t = p.task(h.Topic, h.ID)
	t.Left, t.Steps = 0, []string{"ok"}
	return p.client.Put(ctx, t, true)
}

// topics are those of all jobs. Two of them have limits.
var topics = []string{"plain", "limited", "ordered"}

// scripts are what tasks do, each as often as it is here.
var scripts = [][]string{
	{"ok"}, {"ok"}, {"ok"}, {"ok"}, {"hang:20ms"}, {"hang:20ms"}, {"hang:100ms"}, {"err", "ok"}, {"snooze:150ms"}, {"perm"}, {"again:50ms"},
}

func (p *producer) task(topic, id string) *rig.Task {
	t := &rig.Task{
		Topic: topic, ID: id, Steps: scripts[p.r.IntN(len(scripts))], Delay: p.delay(), Retries: -1, Pad: p.r.IntN(200),
		Options: []delayq.JobOption{delayq.Backoff(20*time.Millisecond, 100*time.Millisecond)},
	}
	if t.Steps[0] == "again:50ms" {
		t.Left = 1 + p.r.IntN(3)
	}
	if topic == "ordered" || p.r.IntN(4) > 0 {
		t.Options = append(t.Options, delayq.Key(fmt.Sprintf("k%d", p.r.IntN(4))))
	}
	return t
}

// delay is that of a job: half of them are due at once.
func (p *producer) delay() time.Duration {
	if p.r.IntN(2) == 0 {
		return 0
	}
	return time.Duration(p.r.Int64N(int64(time.Second))).Truncate(time.Millisecond)
}
