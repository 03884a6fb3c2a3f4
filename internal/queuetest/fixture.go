package queuetest

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/redistest"
)

// A Fixture is a client on a fresh prefix, for calls about the topic "topic".
type Fixture struct {
	T      testing.TB
	RDB    redis.UniversalClient
	Prefix string
	Client *delayq.Client

	Inspector *delayq.Inspector
	Hand      *hand.Hand // for the topic
}

// EachClient runs a test on both backends, in parallel with other tests.
func EachClient(t *testing.T, test func(t *testing.T, f *Fixture)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) { test(t, NewFixture(t, rdb)) })
}

// NewFixture returns a Fixture on rdb.
func NewFixture(t testing.TB, rdb redis.UniversalClient, opts ...delayq.ClientOption) *Fixture {
	f := &Fixture{T: t, RDB: rdb, Prefix: redistest.Prefix(t)}
	f.Client = delayq.NewClient(rdb, append(opts, delayq.Prefix(f.Prefix))...)
	f.Inspector = delayq.NewInspector(rdb, delayq.Prefix(f.Prefix))
	f.Hand = hand.New(t, rdb, f.Prefix, "topic")
	return f
}

// Stats returns the numbers of the topic.
func (f *Fixture) Stats() delayq.TopicStats {
	f.T.Helper()
	return StatsOf(f.T, f.Inspector, "topic")
}

// Key returns one of the topic's keys, like that of pool.
func (f *Fixture) Key(name string) string { return f.Prefix + ":{topic}:" + name }

// Enqueue stores a job that is expected to be stored.
func (f *Fixture) Enqueue(id string, opts ...delayq.JobOption) *delayq.Job {
	f.T.Helper()
	job, err := f.Client.Enqueue(f.T.Context(), "topic", id, []byte("payload of "+id), opts...)
	require.NoError(f.T, err)
	return job
}

// Get returns what is known about a job.
func (f *Fixture) Get(id string) *delayq.JobInfo {
	f.T.Helper()
	info, err := f.Client.Get(f.T.Context(), "topic", id)
	require.NoError(f.T, err)
	return info
}

// Dump returns all that Redis holds, but receipts and the names of topics.
func (f *Fixture) Dump() map[string]any {
	f.T.Helper()
	return redistest.Dump(f.T, f.RDB, f.Prefix)
}

// Dequeue cancels a job and returns the state it was in.
func (f *Fixture) Dequeue(id string) delayq.State {
	f.T.Helper()
	state, err := f.Client.Dequeue(f.T.Context(), "topic", id)
	require.NoError(f.T, err)
	return state
}

// InfoIDs returns the IDs of a list.
func InfoIDs(list []*delayq.JobInfo) (ids []string) {
	for _, info := range list {
		ids = append(ids, info.ID)
	}
	return ids
}
