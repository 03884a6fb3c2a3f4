package commit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// With DELAYQ_ROLES, these calls are those of the producer, or of the operator if he alone may make
// them. The roles of other packages' tests are in internal/hand, which imports this package.
func init() {
	redistest.RoleOf = func(call redistest.Call) (role, what string) {
		for _, arg := range call.Cmd.Args() {
			if key, ok := arg.(string); ok && strings.HasSuffix(key, "}:operator") {
				return "operator", call.Function
			}
		}
		return "producer", call.Function
	}
}

func TestMain(m *testing.M) {
	redis.SetLogger(noLog{}) // go-redis reports every connection that fails
	debug.SetGCPercent(400)  // the embedded Redis makes a Lua state for every call
	redistest.SideBySide()
	m.Run()
}

type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

// A scriptLog hears of the calls of scripts.
type scriptLog struct {
	mu     sync.Mutex
	events []script.Event
}

func (l *scriptLog) Listens() bool { return true }

func (l *scriptLog) Called(e script.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

// stored returns how many jobs each call of enqueue or replace was about.
func (l *scriptLog) stored() (list []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if e.Name == script.Enqueue.Name || e.Name == script.Replace.Name {
			list = append(list, e.Jobs)
		}
	}
	return list
}

// calls returns the names of the scripts that were called, and about how many jobs.
func (l *scriptLog) calls() (list []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		list = append(list, fmt.Sprint(e.Name, " ", e.Jobs))
	}
	return list
}

// A caller makes the calls of a client.
type caller struct {
	*Groups
	log scriptLog
}

func newCaller(rdb redis.UniversalClient, prefix string) *caller {
	c := &caller{}
	flights := 1
	if single, ok := rdb.(*redis.Client); ok {
		flights = single.Options().PoolSize / 2
	}
	c.Groups = New(Wire{
		Redis: rdb, Scripts: script.Caller{RDB: rdb, Hooks: &c.log}, Series: &script.SeriesPool{}, Prefix: prefix, Tick: time.Second,
	}, flights)
	return c
}

// tellTime shows Redis's clock to the group of a topic, as a reply does.
func (c *caller) tellTime(t testing.TB) {
	g := c.For("topic", Enqueue)
	defer g.Release()
	for {
		sent := time.Now()
		ms, received := c.Redis.Time(t.Context()).Val().UnixMilli(), time.Now()
		if received.Sub(sent) > stampAhead/2*time.Millisecond {
			continue // the machine is busy
		}
		g.clock.Read(ms-guessFrom.Milliseconds(), sent.Add(-guessFrom), received.Add(-guessFrom))
		g.clock.Read(ms, sent, received)
		return
	}
}

// do carries out a call about a job, as a client does.
func (c *caller) do(ctx context.Context, o *Op) error {
	g := c.For(o.Topic, o.Kind)
	defer g.Release()
	return g.Do(ctx, o)
}

// A job is what a test says of a new job.
type job struct {
	payload []byte
	when    string // as the script reads it; empty: now
	replace Replacing
	opts    record.Options
}

// store returns the call that stores a job.
func (j job) store(t testing.TB, topic, id string) *Op {
	e := &Fresh{Nonce: record.NewNonce(), When: string(j.replace) + "+0", Replace: j.replace, Opts: &j.opts}
	if j.when != "" {
		e.When = j.when
		j.setTimes(t)
	}
	var err error
	e.Draft, err = record.NewDraft(e.Nonce, e.Opts, j.payload)
	require.NoError(t, err)
	return &Op{Kind: Enqueue, Topic: topic, ID: id, Fresh: e}
}

// setTimes sets the options that when stands for.
func (j *job) setTimes(t testing.TB) {
	due, till, _ := strings.Cut(strings.TrimLeft(j.when, "rd"), " ")
	for text, of := range map[string][2]*int64{due: {&j.opts.DueAt, &j.opts.DueIn}, till: {&j.opts.ExpireAt, &j.opts.ExpireIn}} {
		if text == "" {
			continue
		}
		delay, relative := strings.CutPrefix(text, "+")
		ms, err := strconv.ParseInt(delay, 10, 64)
		require.NoError(t, err)
		if relative {
			*of[1] = ms
		} else {
			*of[0] = ms
		}
	}
}

// at returns the record of a job that was enqueued at some time.
func (f *Fresh) at(ms int64) string {
	return record.Join(string(f.Draft.Head()), ms, string(f.Draft.Tail()))
}

// A commitTest is a caller in a bubble whose flights can be held up.
type commitTest struct {
	*caller
	t     *testing.T
	r     *embedded.Redis
	rdb   *redis.Client
	open  func() // lets the flight go on
	fault *redistest.Fault
	wg    sync.WaitGroup
}

// holding runs a test while the first flight, of the job "gatekeeper", is under way.
func holding(t *testing.T, test func(t *testing.T, c *commitTest)) {
	t.Helper()
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, r *embedded.Redis, rdb *redis.Client) {
		gate := make(chan struct{})
		c := &commitTest{t: t, r: r, open: sync.OnceFunc(func() { close(gate) })}
		c.fault = &redistest.Fault{What: "gatekeeper", After: func() { <-gate }}
		defer func() { // also when the test has failed half way
			c.open()
			c.wg.Wait()
		}()
		c.rdb = redis.NewClient(redistest.Faulty(rdb, c.fault))
		redistest.InRoles(t, c.rdb)
		defer func() { require.NoError(t, c.rdb.Close()) }()
		c.caller = newCaller(c.rdb, "delayq")
		// The script is known from here on, so that one flight is one call.
		require.NoError(t, c.do(t.Context(), job{}.store(t, "topic", "zeroth")))
		c.log.events = nil

		c.enqueue(c.stored, "gatekeeper", job{})
		test(t, c)
		c.wg.Wait()
		synctest.Wait()
		g := c.For("topic", Enqueue)
		require.Zero(t, g.flights.up)
		require.Zero(t, g.flights.gathering)
		require.Zero(t, g.flights.air)
		require.Zero(t, c.air.up.Load())
		require.Empty(t, g.pending)
	})
}

// start starts a call and returns when it waits for something.
func (c *commitTest) start(ctx context.Context, o *Op, outcome func(*Op, error)) {
	c.wg.Go(func() { outcome(o, c.do(ctx, o)) })
	synctest.Wait()
}

// call is start of a call of a kind that needs no more than the ID.
func (c *commitTest) call(k *Kind, id string, outcome func(*Op, error)) {
	c.start(c.t.Context(), &Op{Kind: k, Topic: "topic", ID: id}, outcome)
}

// enqueue is start of an enqueue.
func (c *commitTest) enqueue(outcome func(*Op, error), id string, j job) {
	c.start(c.t.Context(), j.store(c.t, "topic", id), outcome)
}

func (c *commitTest) stored(o *Op, err error) {
	if err != nil || o.Letter != script.LetterStored {
		c.t.Error(o.ID, string(rune(o.Letter)), err)
	}
}

// says returns a function that checks the letter of a call.
func (c *commitTest) says(letter byte) func(*Op, error) {
	return func(o *Op, err error) {
		if err != nil || o.Letter != letter {
			c.t.Errorf("%s: %c, want %c: %v", o.ID, o.Letter, letter, err)
		}
	}
}

// into returns a function that keeps the error of a call.
func into(got *error) func(*Op, error) { return func(_ *Op, err error) { *got = err } }

func (c *commitTest) release() {
	c.open()
	synctest.Wait()
}

func (c *commitTest) has(id string) bool { return slices.Contains(c.pool(), id) }

func (c *commitTest) pool() []string {
	ids, err := c.r.HKeys("delayq:{topic}:pool")
	require.NoError(c.t, err)
	return ids
}

// crashes are the ways in which code of the user can end a goroutine of the library.
var crashes = map[string]func(){"panic": func() { panic("oh no") }, "goexit": runtime.Goexit}

// A crashing hook of go-redis crashes while it is on.
type crashing struct {
	on   atomic.Bool
	with func()
	n    atomic.Int64 // how often it has
}

func (c *crashing) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *crashing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *crashing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if c.on.Load() {
			c.n.Add(1)
			c.with()
		}
		return next(ctx, cmd)
	}
}

// pipelines counts those of go-redis with scripts.
type pipelines struct {
	n    atomic.Int64
	with atomic.Pointer[func()] // called in the way of each
}

func (p *pipelines) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (p *pipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (p *pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Name() == "evalsha" }) {
			p.n.Add(1)
			if f := p.with.Load(); f != nil {
				(*f)()
			}
		}
		return next(ctx, cmds)
	}
}

// countAdds counts additions to sets.
type countAdds int

func (c *countAdds) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *countAdds) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *countAdds) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "sadd" {
			*c++
		}
		return next(ctx, cmd)
	}
}

// failAdds makes so many additions to sets fail. They are not carried out. While it hangs, none is
// answered.
type failAdds struct {
	left  atomic.Int64
	hangs atomic.Bool
}

var errAdd = errors.New("the set is away")

func (f *failAdds) DialHook(next redis.DialHook) redis.DialHook { return next }
func (f *failAdds) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f *failAdds) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "sadd" {
			if err := ctx.Err(); err != nil {
				return err
			}
			if f.left.Add(-1) >= 0 {
				return errAdd
			}
			if f.hangs.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
		}
		return next(ctx, cmd)
	}
}

// ownClient skips a test on a real Redis that closes or hooks its client. With roles, other clients
// make the calls of that one.
func ownClient(t testing.TB) {
	if redistest.Roles() && strings.HasSuffix(t.Name(), "/redis") {
		t.Skip("with roles, other clients make the calls of the one that this test closes or hooks")
	}
}

// loadScripts makes Redis know all scripts, so that no call is made twice for lack of one.

func loadScripts(t testing.TB, rdb redis.UniversalClient) {
	for _, s := range script.All {
		require.NoError(t, rdb.ScriptLoad(t.Context(), fmt.Sprint(s.Text)).Err())
	}
}

// isUnknown reports whether the outcome of a call is unknown.
func isUnknown(err error) bool { return errors.Is(err, script.ErrUnknown) }

// scripted reports whether a command calls a script.
func scripted(cmd redis.Cmder) bool { return strings.HasPrefix(cmd.Name(), "eval") }
