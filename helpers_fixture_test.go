package delayq_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
)

// A fixture is a client on a fresh prefix, and a Hand for the topic "topic".
type fixture struct {
	t      *testing.T
	rdb    redis.UniversalClient
	prefix string
	client *delayq.Client
	hand   *delayq.Hand
}

// eachClient runs a test on both backends.
func eachClient(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) { test(t, newFixture(t, rdb)) })
}

func newFixture(t *testing.T, rdb redis.UniversalClient, opts ...delayq.ClientOption) *fixture {
	f := &fixture{t: t, rdb: rdb, prefix: redistest.Prefix(t)}
	f.client = delayq.NewClient(rdb, append(opts, delayq.Prefix(f.prefix))...)
	f.hand = delayq.NewHand(t, rdb, f.prefix, "topic")
	return f
}

// enqueue stores a job that is expected to be stored.
func (f *fixture) enqueue(id string, opts ...delayq.JobOption) *delayq.Job {
	f.t.Helper()
	job, err := f.client.Enqueue(f.t.Context(), "topic", id, []byte("payload of "+id), opts...)
	require.NoError(f.t, err)
	return job
}

func (f *fixture) get(id string) *delayq.JobInfo {
	f.t.Helper()
	info, err := f.client.Get(f.t.Context(), "topic", id)
	require.NoError(f.t, err)
	return info
}

// dump is all that is stored but receipts and the names of topics.
func (f *fixture) dump() map[string]any {
	f.t.Helper()
	return delayq.Dump(f.t, f.rdb, f.prefix)
}

// lives are the ways of a job to a state: what has become of it before the call that a test is
// about.
var lives = []struct {
	name  string
	state delayq.State // "" if there is no such job any more
	lead  func(f *fixture, id string) (lease delayq.Held)
}{
	{"scheduled", delayq.StateScheduled, func(f *fixture, id string) (none delayq.Held) {
		f.enqueue(id, delayq.ProcessIn(time.Hour))
		return none
	}},
	{"ready", delayq.StateReady, func(f *fixture, id string) (none delayq.Held) {
		f.enqueue(id)
		return none
	}},
	{"running", delayq.StateRunning, func(f *fixture, id string) delayq.Held {
		f.enqueue(id)
		return f.hand.TakeOne(id)
	}},
	{"backing off", delayq.StateScheduled, func(f *fixture, id string) delayq.Held {
		f.enqueue(id)
		held := f.hand.TakeOne(id)
		require.Equal(f.t, "o", f.hand.Retry(time.Hour, held))
		return held
	}},
	{"snoozed", delayq.StateScheduled, func(f *fixture, id string) delayq.Held {
		f.enqueue(id)
		held := f.hand.TakeOne(id)
		require.Equal(f.t, "o", f.hand.Snooze(time.Hour, held))
		return held
	}},
	{"reclaimed", delayq.StateReady, func(f *fixture, id string) delayq.Held {
		f.enqueue(id)
		held := f.hand.Take(1, 0)
		require.Len(f.t, held, 1)
		_, reclaimed := f.hand.Promote()
		require.Equal(f.t, 1, reclaimed)
		return held[0]
	}},
	{"dead", delayq.StateDead, func(f *fixture, id string) delayq.Held {
		f.enqueue(id)
		held := f.hand.TakeOne(id)
		require.Equal(f.t, "o", f.hand.Bury(held))
		return held
	}},
	{"revived", delayq.StateReady, func(f *fixture, id string) delayq.Held {
		f.enqueue(id)
		held := f.hand.TakeOne(id)
		require.Equal(f.t, "o", f.hand.Bury(held))
		require.NoError(f.t, f.client.Revive(f.t.Context(), "topic", id))
		return held
	}},
	{"rescheduled", delayq.StateScheduled, func(f *fixture, id string) (none delayq.Held) {
		f.enqueue(id)
		require.NoError(f.t, f.client.Reschedule(f.t.Context(), "topic", id, delayq.ProcessIn(time.Hour)))
		return none
	}},
	{"done", "", func(f *fixture, id string) delayq.Held {
		f.enqueue(id)
		held := f.hand.TakeOne(id)
		require.Equal(f.t, "o", f.hand.Ack(held))
		return held
	}},
	{"kept as done", "", func(f *fixture, id string) delayq.Held {
		f.enqueue(id, delayq.Retention(time.Hour))
		held := f.hand.TakeOne(id)
		require.Equal(f.t, "o", f.hand.Ack(held))
		return held
	}},
	{"cancelled while ready", "", func(f *fixture, id string) (none delayq.Held) {
		f.enqueue(id)
		f.dequeue(id)
		return none
	}},
	{"cancelled while running", "", func(f *fixture, id string) delayq.Held {
		f.enqueue(id)
		held := f.hand.TakeOne(id)
		f.dequeue(id)
		return held
	}},
	{"never there", "", func(*fixture, string) (none delayq.Held) { return none }},
}

func (f *fixture) dequeue(id string) delayq.State {
	f.t.Helper()
	state, err := f.client.Dequeue(f.t.Context(), "topic", id)
	require.NoError(f.t, err)
	return state
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
