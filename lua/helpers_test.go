package lua_test

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

func TestMain(m *testing.M) { queuetest.Main(m, hand.RolesError) }

// A Hand is a hand.Hand that knows clients.
type Hand struct{ *hand.Hand }

// NewHand makes a Hand for a topic.
func NewHand(t testing.TB, rdb redis.UniversalClient, prefix, topic string) *Hand {
	return &Hand{hand.New(t, rdb, prefix, topic)}
}

// eachHand runs a test of scripts on both backends, in parallel with other tests.
func eachHand(t *testing.T, test func(t *testing.T, h *Hand)) {
	t.Helper()
	hand.Each(t, func(t *testing.T, h *hand.Hand) { test(t, &Hand{h}) })
}

// A client makes calls, and its inspector reads the same queue.
type client struct {
	*delayq.Client
	insp *delayq.Inspector
}

func newClient(rdb redis.UniversalClient, prefix string, opts ...delayq.ClientOption) *client {
	return &client{delayq.NewClient(rdb, append(opts, delayq.Prefix(prefix))...), delayq.NewInspector(rdb, delayq.Prefix(prefix))}
}

// client makes a client of the queue that the Hand's topic is in.
func (h *Hand) client() *client { return newClient(h.RDB, h.Prefix()) }

// info returns what is known about a job.
func (h *Hand) info(id string) *delayq.JobInfo {
	h.T.Helper()
	info, err := h.client().Get(context.Background(), h.Keys.Topic, id)
	require.NoError(h.T, err)
	return info
}

// What clients may ask for: see the documents of Client.Hold, HoldKey and SetKeyLimits.
const (
	mostHeldKeys  = 100_000
	mostKeyLimits = 10_000
)

// rare is an interval so long that no slot comes while a test runs.
const rare = 100_000 * time.Hour

// waitOf is how long the timer of a topic may sleep by the reply of promote: some µs, or -1 if
// nothing is to come.
func waitOf(us int64) time.Duration {
	if us < 0 {
		return math.MaxInt64
	}
	return time.Duration(us) * time.Microsecond
}

// errTest is an error of a handler.
var errTest = errors.New("errTest")

// errOverheard ends the calls of an eavesdropper.
var errOverheard = errors.New("overheard")

// An eavesdropper keeps the requests that a client would send, and sends none. It says that topics
// have no partitions.
type eavesdropper struct{ args []any }

func (*eavesdropper) DialHook(next redis.DialHook) redis.DialHook { return next }

func (e *eavesdropper) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		e.args = cmd.Args()
		if c, ok := cmd.(*redis.Cmd); ok && e.args[1] == script.PartMap.Digest {
			c.SetVal([]any{"ok", int64(1), "", "0", ""})
			return nil
		}
		cmd.SetErr(errOverheard)
		return errOverheard
	}
}

func (*eavesdropper) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// overheard returns an argument of the script that a call of a client executes, counted from 0.
func overheard(t testing.TB, n int, call func(c *delayq.Client) error) string {
	t.Helper()
	e, rdb := &eavesdropper{}, redistest.Unused(t)
	rdb.AddHook(e)
	require.ErrorIs(t, call(delayq.NewClient(rdb)), errOverheard)
	return e.args[3+e.args[2].(*script.Request).Keys+n].(string)
}

// flowOf returns limits as SetLimits sends them to the script.
func flowOf(t testing.TB, l delayq.Limits) string {
	t.Helper()
	return overheard(t, 1, func(c *delayq.Client) error { return c.SetLimits(context.Background(), "topic", l) })
}

// ruleOf returns the limits of a key as SetKeyLimits sends them to the script.
func ruleOf(t testing.TB, l delayq.KeyLimits) string {
	t.Helper()
	return overheard(t, 2, func(c *delayq.Client) error { return c.SetKeyLimits(context.Background(), "topic", "key", l) })
}

// emits are what emitOf has found out, by rate.
var emits sync.Map

// emitOf returns the microseconds between two starts of a rate, as the scripts are told.
func emitOf(t testing.TB, r delayq.Rate) int64 {
	t.Helper()
	if emit, known := emits.Load(r); known {
		return emit.(int64)
	}
	emit, err := strconv.ParseInt(strings.Fields(flowOf(t, delayq.Limits{Rate: r}))[1], 10, 64)
	require.NoError(t, err)
	emits.Store(r, emit)
	return emit
}

// tryLimits is one call of the limits script.
func (h *Hand) tryLimits(l delayq.Limits) (script.Reply, error) {
	return h.TryLimits(flowOf(h.T, l))
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
