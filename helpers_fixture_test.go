package delayq_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

func TestMain(m *testing.M) { queuetest.Main(m, delayq.RolesError) }

// A fixture is a Fixture with a Hand for its topic.
type fixture struct {
	*queuetest.Fixture
	hand *delayq.Hand
}

// eachClient runs a test on both backends.
func eachClient(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) { test(t, withHand(f)) })
}

func withHand(f *queuetest.Fixture) *fixture {
	return &fixture{f, delayq.NewHand(f.T, f.RDB, f.Prefix, "topic")}
}

func newFixture(t *testing.T, rdb redis.UniversalClient, opts ...delayq.ClientOption) *fixture {
	return withHand(queuetest.NewFixture(t, rdb, opts...))
}

// lives are the ways of a job to a state: what has become of it before the call that a test is
// about.
var lives = []struct {
	name  string
	state delayq.State // "" if there is no such job any more
	lead  func(f *fixture, id string) (lease delayq.Held)
}{
	{"scheduled", delayq.StateScheduled, func(f *fixture, id string) (none delayq.Held) {
		f.Enqueue(id, delayq.ProcessIn(time.Hour))
		return none
	}},
	{"ready", delayq.StateReady, func(f *fixture, id string) (none delayq.Held) {
		f.Enqueue(id)
		return none
	}},
	{"running", delayq.StateRunning, func(f *fixture, id string) delayq.Held {
		f.Enqueue(id)
		return f.hand.TakeOne(id)
	}},
	{"backing off", delayq.StateScheduled, func(f *fixture, id string) delayq.Held {
		f.Enqueue(id)
		held := f.hand.TakeOne(id)
		require.Equal(f.T, "o", f.hand.Retry(time.Hour, held))
		return held
	}},
	{"snoozed", delayq.StateScheduled, func(f *fixture, id string) delayq.Held {
		f.Enqueue(id)
		held := f.hand.TakeOne(id)
		require.Equal(f.T, "o", f.hand.Snooze(time.Hour, held))
		return held
	}},
	{"reclaimed", delayq.StateReady, func(f *fixture, id string) delayq.Held {
		f.Enqueue(id)
		held := f.hand.Take(1, 0)
		require.Len(f.T, held, 1)
		_, reclaimed := f.hand.Promote()
		require.Equal(f.T, 1, reclaimed)
		return held[0]
	}},
	{"dead", delayq.StateDead, func(f *fixture, id string) delayq.Held {
		f.Enqueue(id)
		held := f.hand.TakeOne(id)
		require.Equal(f.T, "o", f.hand.Bury(held))
		return held
	}},
	{"revived", delayq.StateReady, func(f *fixture, id string) delayq.Held {
		f.Enqueue(id)
		held := f.hand.TakeOne(id)
		require.Equal(f.T, "o", f.hand.Bury(held))
		require.NoError(f.T, f.Client.Revive(f.T.Context(), "topic", id))
		return held
	}},
	{"rescheduled", delayq.StateScheduled, func(f *fixture, id string) (none delayq.Held) {
		f.Enqueue(id)
		require.NoError(f.T, f.Client.Reschedule(f.T.Context(), "topic", id, delayq.ProcessIn(time.Hour)))
		return none
	}},
	{"done", "", func(f *fixture, id string) delayq.Held {
		f.Enqueue(id)
		held := f.hand.TakeOne(id)
		require.Equal(f.T, "o", f.hand.Ack(held))
		return held
	}},
	{"kept as done", "", func(f *fixture, id string) delayq.Held {
		f.Enqueue(id, delayq.Retention(time.Hour))
		held := f.hand.TakeOne(id)
		require.Equal(f.T, "o", f.hand.Ack(held))
		return held
	}},
	{"cancelled while ready", "", func(f *fixture, id string) (none delayq.Held) {
		f.Enqueue(id)
		f.Dequeue(id)
		return none
	}},
	{"cancelled while running", "", func(f *fixture, id string) delayq.Held {
		f.Enqueue(id)
		held := f.hand.TakeOne(id)
		f.Dequeue(id)
		return held
	}},
	{"never there", "", func(*fixture, string) (none delayq.Held) { return none }},
}

// eachLife runs a test for every life of the job "x", on both backends.
func eachLife(t *testing.T, test func(t *testing.T, f *fixture, state delayq.State, lease delayq.Held)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, life := range lives {
			t.Run(strings.ReplaceAll(life.name, " ", "_"), func(t *testing.T) {
				f := newFixture(t, rdb)
				test(t, f, life.state, life.lead(f, "x"))
			})
		}
	})
}
