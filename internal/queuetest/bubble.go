package queuetest

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/redistest"
)

// A Bubble is a queue on an embedded Redis in a synctest bubble. A call to Redis takes no time
// there, so a server acts at the very instant of the fake clock at which something is due.
type Bubble struct {
	*testing.T
	Redis  *embedded.Redis
	RDB    *redis.Client
	Client *delayq.Client
	Began  time.Time

	Inspector *delayq.Inspector
}

// Prefix is that of the keys in a Bubble.
const Prefix = "q"

// InBubble runs a test in a Bubble, in parallel with other tests.
func InBubble(t *testing.T, test func(b *Bubble)) {
	t.Helper()
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, r *embedded.Redis, rdb *redis.Client) {
		prefix := delayq.Prefix(Prefix)
		test(&Bubble{
			T: t, Redis: r, RDB: rdb, Client: delayq.NewClient(rdb, prefix), Inspector: delayq.NewInspector(rdb, prefix), Began: time.Now(),
		})
	})
}

// Pass lets d go by, and waits for everything that happens until then.
func (b *Bubble) Pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// At returns the fake time since the beginning.
func (b *Bubble) At() time.Duration { return time.Since(b.Began) }

// Enqueue stores a job that is expected to be stored.
func (b *Bubble) Enqueue(topic, id string, opts ...delayq.JobOption) *delayq.Job {
	b.Helper()
	job, err := b.Client.Enqueue(b.Context(), topic, id, []byte("of "+id), opts...)
	require.NoError(b, err)
	return job
}

// State returns the state of a job, or "" if there is no such job.
func (b *Bubble) State(topic, id string) delayq.State {
	b.Helper()
	return StateOf(b.T, b.Client, topic, id)
}

// Get returns what is known about a job.
func (b *Bubble) Get(topic, id string) *delayq.JobInfo {
	b.Helper()
	info, err := b.Client.Get(b.Context(), topic, id)
	require.NoError(b, err)
	return info
}

// Counter returns a counter of a topic.
func (b *Bubble) Counter(topic string, name delayq.Counter) int64 {
	b.Helper()
	return CounterOf(b.T, b.Inspector, topic, name)
}

// Stats returns the numbers of a topic.
func (b *Bubble) Stats(topic string) delayq.TopicStats {
	b.Helper()
	return StatsOf(b.T, b.Inspector, topic)
}

// LoadScripts makes Redis know all scripts, so that requests name them by their digests only.
func (b *Bubble) LoadScripts() {
	b.Helper()
	require.NoError(b, LoadScripts(b.Context(), b.RDB))
}

// Serve runs a server with one handler on the bubble's own client.
func (b *Bubble) Serve(topic string, h delayq.HandlerFunc, opts ...delayq.ServerOption) *Running {
	b.Helper()
	s := Serve(b.T, b.RDB, Prefix, topic, h, opts...)
	synctest.Wait()
	return s
}

// ServeOn is Serve for a server that has a network of its own.
func (b *Bubble) ServeOn(w *Wire, topic string, h delayq.HandlerFunc, opts ...delayq.ServerOption) *Running {
	b.Helper()
	s := Serve(b.T, w.Client(b.T), Prefix, topic, h, opts...)
	synctest.Wait()
	return s
}

// PoolKey returns the key of the records of a topic: see docs/protocol.md.
func PoolKey(topic string) string { return Prefix + ":{" + topic + "}:pool" }

// AddSchedule creates a schedule of the topic "t".
func (b *Bubble) AddSchedule(name string, spec delayq.Spec, opts ...delayq.ScheduleOption) {
	b.Helper()
	require.NoError(b, b.Client.Schedule(b.Context(), "t", name, spec, []byte("of "+name), opts...))
}

// ScheduleInfo returns what is known about a schedule of the topic "t".
func (b *Bubble) ScheduleInfo(name string) *delayq.ScheduleInfo {
	b.Helper()
	info, err := b.Inspector.Schedule(b.Context(), "t", name)
	require.NoError(b, err)
	return info
}

// SlotID returns the ID of the job of a slot. The slot is a time since the beginning.
func (b *Bubble) SlotID(name string, slot time.Duration) string {
	return fmt.Sprintf("%s@%d", name, b.Began.Add(slot).UnixMilli())
}
