package queuetest

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/redistest"
)

// Lives are the ways of a job to a state: what has become of it before the call that a test is
// about.
var Lives = []struct {
	Name  string
	State delayq.State // "" if there is no such job any more
	Lead  func(f *Fixture, id string) (lease hand.Held)
}{
	{"scheduled", delayq.StateScheduled, func(f *Fixture, id string) (none hand.Held) {
		f.Enqueue(id, delayq.ProcessIn(time.Hour))
		return none
	}},
	{"ready", delayq.StateReady, func(f *Fixture, id string) (none hand.Held) {
		f.Enqueue(id)
		return none
	}},
	{"running", delayq.StateRunning, func(f *Fixture, id string) hand.Held {
		f.Enqueue(id)
		return f.Hand.TakeOne(id)
	}},
	{"backing off", delayq.StateScheduled, func(f *Fixture, id string) hand.Held {
		f.Enqueue(id)
		held := f.Hand.TakeOne(id)
		require.Equal(f.T, "o", f.Hand.Retry(time.Hour, held))
		return held
	}},
	{"snoozed", delayq.StateScheduled, func(f *Fixture, id string) hand.Held {
		f.Enqueue(id)
		held := f.Hand.TakeOne(id)
		require.Equal(f.T, "o", f.Hand.Snooze(time.Hour, held))
		return held
	}},
	{"reclaimed", delayq.StateReady, func(f *Fixture, id string) hand.Held {
		f.Enqueue(id)
		held := f.Hand.Take(1, 0)
		require.Len(f.T, held, 1)
		_, reclaimed := f.Hand.Promote()
		require.Equal(f.T, 1, reclaimed)
		return held[0]
	}},
	{"dead", delayq.StateDead, func(f *Fixture, id string) hand.Held {
		f.Enqueue(id)
		held := f.Hand.TakeOne(id)
		require.Equal(f.T, "o", f.Hand.Bury(held))
		return held
	}},
	{"revived", delayq.StateReady, func(f *Fixture, id string) hand.Held {
		f.Enqueue(id)
		held := f.Hand.TakeOne(id)
		require.Equal(f.T, "o", f.Hand.Bury(held))
		require.NoError(f.T, f.Client.Revive(f.T.Context(), "topic", id))
		return held
	}},
	{"rescheduled", delayq.StateScheduled, func(f *Fixture, id string) (none hand.Held) {
		f.Enqueue(id)
		require.NoError(f.T, f.Client.Reschedule(f.T.Context(), "topic", id, delayq.ProcessIn(time.Hour)))
		return none
	}},
	{"done", "", func(f *Fixture, id string) hand.Held {
		f.Enqueue(id)
		held := f.Hand.TakeOne(id)
		require.Equal(f.T, "o", f.Hand.Ack(held))
		return held
	}},
	{"kept as done", "", func(f *Fixture, id string) hand.Held {
		f.Enqueue(id, delayq.Retention(time.Hour))
		held := f.Hand.TakeOne(id)
		require.Equal(f.T, "o", f.Hand.Ack(held))
		return held
	}},
	{"cancelled while ready", "", func(f *Fixture, id string) (none hand.Held) {
		f.Enqueue(id)
		f.Dequeue(id)
		return none
	}},
	{"cancelled while running", "", func(f *Fixture, id string) hand.Held {
		f.Enqueue(id)
		held := f.Hand.TakeOne(id)
		f.Dequeue(id)
		return held
	}},
	{"never there", "", func(*Fixture, string) (none hand.Held) { return none }},
}

// EachLife runs a test for every life of the job "x", on both backends, in parallel with other
// tests.
func EachLife(t *testing.T, test func(t *testing.T, f *Fixture, state delayq.State, lease hand.Held)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, life := range Lives {
			t.Run(strings.ReplaceAll(life.Name, " ", "_"), func(t *testing.T) {
				f := NewFixture(t, rdb)
				test(t, f, life.State, life.Lead(f, "x"))
			})
		}
	})
}
