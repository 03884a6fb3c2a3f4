package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// What a topic has that is late, that waits for another attempt, and that is served.
func TestStatsOfATopic(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Enqueue("a", "late", delayq.ProcessIn(time.Minute))
		b.Enqueue("a", "later", delayq.ProcessIn(2*time.Minute))
		b.Enqueue("a", "far", delayq.ProcessIn(time.Hour))
		stats := b.Stats("a")
		require.Equal(b, "a", stats.Topic)
		require.True(b, stats.At.Equal(time.Now()))
		require.Zero(b, stats.Overdue)
		require.Zero(b, stats.OldestOverdue)
		require.True(b, stats.NextDue.Equal(b.Began.Add(time.Minute)))
		b.Pass(3 * time.Minute) // nobody promotes
		stats = b.Stats("a")
		require.EqualValues(b, 3, stats.Scheduled)
		require.EqualValues(b, 2, stats.Overdue)
		require.True(b, stats.OldestOverdue.Equal(b.Began.Add(time.Minute)))
		require.Zero(b, stats.Servers)

		// Ready ones are overdue too, by the due time that they have now.
		b.Enqueue("b", "moved", delayq.ProcessIn(time.Hour))
		require.NoError(b, b.Client.Reschedule(b.Context(), "b", "moved", delayq.ProcessIn(0)))
		moved := time.Now()
		b.Enqueue("b", "now", delayq.Header("h", strings.Repeat("x", 10_000)))
		b.Pass(time.Minute)
		stats = b.Stats("b")
		require.EqualValues(b, 2, stats.Ready)
		require.EqualValues(b, 2, stats.Overdue)
		require.True(b, stats.OldestOverdue.Equal(moved))
		_, err := b.Client.Dequeue(b.Context(), "b", "moved")
		require.NoError(b, err)
		require.True(b, b.Stats("b").OldestOverdue.Equal(moved), "enqueued at the same time")

		// Two servers, one of which drains, and a job that has failed.
		block := make(chan struct{})
		fail := func(context.Context, *delayq.Job) error { return errors.New("not today") }
		drains := b.Serve("c", func(context.Context, *delayq.Job) error { <-block; return nil }, delayq.Drain(time.Hour), delayq.Concurrency(1))
		b.Enqueue("c", "held")
		b.Pass(time.Second)
		b.Serve("c", fail, delayq.Concurrency(7))
		b.Enqueue("c", "1", delayq.Backoff(time.Hour, time.Hour))
		b.Enqueue("c", "2", delayq.Backoff(time.Hour, time.Hour))
		b.Enqueue("c", "dead", delayq.Retry(0))
		b.Pass(6 * time.Second)
		stats = b.Stats("c")
		require.Equal(b, []int{2, 8}, []int{stats.Servers, stats.Workers})
		require.Equal(b, []int64{1, 2, 1}, []int64{stats.Running, stats.Scheduled, stats.Dead})
		require.EqualValues(b, 2, stats.Retrying, "dead ones are left out")
		drains.End()
		b.Pass(6 * time.Second)
		stats = b.Stats("c")
		require.Equal(b, []int{1, 7}, []int{stats.Servers, stats.Workers})
		close(block)
	})
}

// Entries of ready that cancelled jobs have left do not hide the first job, if they are few.
func TestStatsBehindLeftEntries(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		first := f.Enqueue("first")
		require.Equal(t, first.Due, f.Stats().OldestOverdue)
		for i := range 19 {
			require.NoError(t, f.RDB.LPush(t.Context(), f.Key("ready"), fmt.Sprint("gone", i)).Err())
		}
		require.Equal(t, first.Due, f.Stats().OldestOverdue)
		require.NoError(t, f.RDB.LPush(t.Context(), f.Key("ready"), "gone").Err())
		require.Zero(t, f.Stats().OldestOverdue)
		require.EqualValues(t, 1, f.Stats().Overdue)
	})
}

// Large records are not read: the next small one shows since when jobs wait.
func TestStatsBehindLargeRecords(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		_, err := f.Client.Enqueue(t.Context(), "topic", "large", make([]byte, 16<<10))
		require.NoError(t, err)
		require.Zero(t, f.Stats().OldestOverdue)
		require.EqualValues(t, 1, f.Stats().Overdue)
		small := f.Enqueue("small")
		require.Equal(t, small.Due, f.Stats().OldestOverdue)
	})
}

// Topics come in the order in which they are given, or all of them sorted. One that cannot be read
// does not hide the others.
func TestStatsOfSeveralTopics(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		list, err := f.Inspector.Stats(ctx)
		require.NoError(t, err)
		require.Empty(t, list)
		for i, topic := range []string{"b", "a", "c"} {
			for range i + 1 {
				_, err := f.Client.Enqueue(ctx, topic, "", nil)
				require.NoError(t, err)
			}
		}
		names := func(list []delayq.TopicStats) (all []string) {
			for _, s := range list {
				all = append(all, fmt.Sprint(s.Topic, s.Ready))
			}
			return all
		}
		list, err = f.Inspector.Stats(ctx)
		require.NoError(t, err)
		require.Equal(t, []string{"a2", "b1", "c3"}, names(list))
		list, err = f.Inspector.Stats(ctx, "c", "unused", "a")
		require.NoError(t, err)
		require.Equal(t, []string{"c3", "unused0", "a2"}, names(list))

		require.NoError(t, f.RDB.Set(ctx, f.Prefix+":{b}:bucket", "a slip", 0).Err())
		list, err = f.Inspector.Stats(ctx)
		require.Equal(t, []string{"a2", "c3"}, names(list))
		require.ErrorContains(t, err, `inspect topic "b": key`)
		found, err := f.Inspector.Find(ctx, "x")
		require.NoError(t, err)
		require.Empty(t, found)
	})
}

// A forecast counts scheduled jobs by the half-open steps in which they fall due.
func TestForecast(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		from := time.UnixMilli(4_000_000_000_000)
		for i, ms := range []int64{-1, 0, 1, 59_999, 60_000, 60_000, 179_999, 180_000} {
			f.Enqueue(fmt.Sprint(i), delayq.ProcessAt(from.Add(time.Duration(ms)*time.Millisecond)))
		}
		got, err := f.Inspector.Forecast(ctx, "topic", from, time.Minute, 3)
		require.NoError(t, err)
		require.Equal(t, []int64{3, 2, 1}, got)
		got, err = f.Inspector.Forecast(ctx, "topic", from.Add(-time.Microsecond), time.Minute, 1)
		require.NoError(t, err)
		require.Equal(t, []int64{3}, got, "rounded up, as due times are")
		got, err = f.Inspector.Forecast(ctx, "topic", from, time.Millisecond, 10_000)
		require.NoError(t, err)
		require.Len(t, got, 10_000)
		require.Equal(t, []int64{1, 1, 0}, got[:3])
		got, err = f.Inspector.Forecast(ctx, "unused", from, time.Hour, 2)
		require.NoError(t, err)
		require.Equal(t, []int64{0, 0}, got)

		for says, bad := range map[string]func() ([]int64, error){
			"from: the zero time":      func() ([]int64, error) { return f.Inspector.Forecast(ctx, "topic", time.Time{}, time.Hour, 1) },
			"step(0s): at least 1ms":   func() ([]int64, error) { return f.Inspector.Forecast(ctx, "topic", from, 0, 1) },
			"step(60ns): at least 1ms": func() ([]int64, error) { return f.Inspector.Forecast(ctx, "topic", from, 60, 1) },
			"n(0): must be from 1":     func() ([]int64, error) { return f.Inspector.Forecast(ctx, "topic", from, time.Hour, 0) },
			"to 10000":                 func() ([]int64, error) { return f.Inspector.Forecast(ctx, "topic", from, time.Hour, 10_001) },
			"100 years":                func() ([]int64, error) { return f.Inspector.Forecast(ctx, "topic", from, 365*24*time.Hour, 101) },
			"the end of the last step": func() ([]int64, error) {
				return f.Inspector.Forecast(ctx, "topic", time.UnixMilli(9_999_999_999_000), time.Hour, 1)
			},
		} {
			_, err := bad()
			require.ErrorIs(t, err, delayq.ErrInvalid, says)
			require.ErrorContains(t, err, says)
			require.ErrorContains(t, err, `forecast topic "topic"`)
		}
		require.NoError(t, f.RDB.Set(ctx, f.Key("bucket"), "a slip", 0).Err())
		_, err = f.Inspector.Forecast(ctx, "topic", from, time.Minute, 3)
		require.ErrorContains(t, err, "is a string and not a zset")
	})
}

// DueWithin counts as Forecast does. A topic that cannot be read does not hide others.
func TestDueWithin(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		from := time.UnixMilli(4_000_000_000_000)
		for i, ms := range []int64{-1, 0, 1, 59_999, 60_000, 3_599_999, 3_600_000} {
			f.Enqueue(fmt.Sprint(i), delayq.ProcessAt(from.Add(time.Duration(ms)*time.Millisecond)))
		}
		spans := []time.Duration{time.Hour, time.Minute, time.Millisecond}
		got, err := f.Inspector.DueWithin(ctx, from, spans, "unused", "topic")
		require.NoError(t, err)
		require.Equal(t, [][]int64{{0, 0, 0}, {5, 3, 1}}, got)
		got, err = f.Inspector.DueWithin(ctx, from.Add(-time.Microsecond), spans[2:], "topic")
		require.NoError(t, err)
		require.Equal(t, [][]int64{{1}}, got, "rounded up, as due times are")
		got, err = f.Inspector.DueWithin(ctx, from, spans)
		require.NoError(t, err)
		require.Empty(t, got)

		for says, bad := range map[string]struct {
			from   time.Time
			within []time.Duration
			topic  string
		}{
			"from: the zero time":                {time.Time{}, spans, "topic"},
			"within has 0 durations":             {from, nil, "topic"},
			"must have from 1 to 10":             {from, make([]time.Duration, 11), "topic"},
			"within(0s): must be from 1ms":       {from, []time.Duration{0}, "topic"},
			"within(60ns): must be from 1ms":     {from, []time.Duration{60}, "topic"},
			"to 876000h0m0s (100 years)":         {from, []time.Duration{101 * 365 * 24 * time.Hour}, "topic"},
			"the end of within(1h0m0s)":          {time.UnixMilli(9_999_999_999_000), spans[:1], "topic"},
			"due within: delayq: invalid: empty": {from, spans, ""},
		} {
			_, err := f.Inspector.DueWithin(ctx, bad.from, bad.within, "ok", bad.topic)
			require.ErrorIs(t, err, delayq.ErrInvalid, says)
			require.ErrorContains(t, err, says)
		}
		require.NoError(t, f.RDB.Set(ctx, f.Key("bucket"), "a slip", 0).Err())
		got, err = f.Inspector.DueWithin(ctx, from, spans, "topic", "unused")
		require.ErrorContains(t, err, `due within topic "topic"`)
		require.ErrorContains(t, err, "is a string and not a zset")
		require.Equal(t, [][]int64{nil, {0, 0, 0}}, got)
	})
}

// The prefix is that of the option, also if it is invalid.
func TestInspectorPrefix(t *testing.T) {
	require.Equal(t, "delayq", delayq.NewInspector(nil).Prefix())
	require.Equal(t, "shop", delayq.NewInspector(nil, delayq.Prefix("shop")).Prefix())
	require.Equal(t, "*", delayq.NewInspector(nil, delayq.Prefix("*")).Prefix())
	require.Empty(t, (*delayq.Inspector)(nil).Prefix())
}

// Find looks into all topics, also at done jobs. A topic that cannot be read does not hide others.
func TestFindInAllTopics(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		b.Serve("done", func(context.Context, *delayq.Job) error { return nil })
		b.Enqueue("done", "x", delayq.Retention(time.Hour))
		b.Enqueue("scheduled", "x", delayq.ProcessIn(time.Hour), delayq.Header("k", "v"))
		b.Enqueue("ready", "x")
		b.Enqueue("other", "y")
		b.Pass(time.Second)
		found, err := b.Inspector.Find(ctx, "x")
		require.NoError(b, err)
		var got []string
		for _, info := range found {
			got = append(got, info.Topic+" "+string(info.State)+" "+info.ID)
			require.Nil(b, info.Payload)
			require.Equal(b, len("of x"), info.PayloadSize)
		}
		require.Equal(b, []string{"done done x", "ready ready x", "scheduled scheduled x"}, got)
		require.Equal(b, "v", found[2].Headers["k"])
		require.NoError(b, b.RDB.Set(ctx, "q:{other}:pool", "a slip", 0).Err())
		found, err = b.Inspector.Find(ctx, "x")
		require.ErrorContains(b, err, `find topic "other" job "x": key "q:{other}:pool" is a string and not a hash`)
		require.Len(b, found, 3)
		_, err = b.Inspector.Find(ctx, strings.Repeat("x", 1025))
		require.ErrorIs(b, err, delayq.ErrInvalid)
		job, err := b.Inspector.Job(ctx, "scheduled", "x")
		require.NoError(b, err)
		require.Equal(b, "of x", string(job.Payload))
		_, err = b.Inspector.Job(ctx, "scheduled", "y")
		require.ErrorIs(b, err, delayq.ErrNotFound)
	})
}

// The audit comes with the latest act first. What cannot be decoded is left out.
func TestAuditIsRead(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := delayq.WithActor(t.Context(), "ann")
		acts, err := f.Inspector.Audit(ctx, 1)
		require.NoError(t, err)
		require.Empty(t, acts)
		f.Enqueue("x")
		_, err = f.Client.Dequeue(ctx, "topic", "x")
		require.NoError(t, err)
		require.NoError(t, f.Client.Pause(ctx, "topic", delayq.Pause{}))
		require.NoError(t, f.RDB.LPush(ctx, f.Prefix+":audit", "of a later release").Err())
		acts, err = f.Inspector.Audit(ctx, 1000)
		require.NoError(t, err)
		require.Len(t, acts, 2)
		require.Equal(t, []string{"ann", "pause", "topic", ""}, []string{acts[0].Actor, acts[0].Action, acts[0].Topic, acts[0].ID})
		require.Equal(t, []string{"cancel", "x"}, []string{acts[1].Action, acts[1].ID})
		require.EqualValues(t, 1, acts[1].Count)
		require.False(t, acts[0].At.Before(acts[1].At))
		acts, err = f.Inspector.Audit(ctx, 2)
		require.NoError(t, err)
		require.Len(t, acts, 1)
		for _, limit := range []int{0, -1, 1001} {
			_, err := f.Inspector.Audit(ctx, limit)
			require.ErrorIs(t, err, delayq.ErrInvalid)
			require.ErrorContains(t, err, fmt.Sprintf("limit %d: must be from 1 to 1000", limit))
		}
	})
}

// The values of Redis are those that it is given. One that knows few is no error.
func TestRedisIsDescribed(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t, append([]string{
		"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru", "--appendonly", "yes", "--appendfsync", "always", "--save", "3600 1",
	}, redistest.NoRoles...)...)
	insp := delayq.NewInspector(rs.Client(t))
	info, err := insp.Redis(t.Context())
	require.NoError(t, err)
	require.Empty(t, info.Missing)
	require.Regexp(t, `^\d+\.\d+`, info.Version)
	require.Equal(t, []string{"standalone", "master", "allkeys-lru", "always", "3600 1"}, []string{info.Mode, info.Role, info.Eviction, info.FSync, info.Snapshots})
	require.EqualValues(t, 100<<20, info.MaxMemory)
	require.Positive(t, info.UsedMemory)
	require.Positive(t, info.Clients)
	require.True(t, info.AOF)
	require.Zero(t, info.Replicas)
	require.NotZero(t, info.Time)
	// There is no snapshot yet: this is the time of the start.
	require.WithinDuration(t, info.Time, info.LastSnapshot, time.Minute)
	require.Positive(t, info.RoundTrip)

	open := func(password string) *redis.Client {
		opt := *rs.Client(t).Options()
		opt.Username, opt.Password = "", password
		rdb := redis.NewClient(&opt)
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	closed := open("")
	require.NoError(t, closed.Close())
	_, err = delayq.NewInspector(closed).Redis(t.Context())
	require.ErrorIs(t, err, redis.ErrClosed)
	require.NoError(t, rs.Client(t).ConfigSet(t.Context(), "requirepass", "safe").Err())
	_, err = delayq.NewInspector(open("")).Redis(t.Context())
	require.ErrorContains(t, err, "redis: NOAUTH")
	_, err = delayq.NewInspector(open("wrong")).Redis(t.Context())
	require.ErrorContains(t, err, "redis: WRONGPASS")
	_, err = delayq.NewInspector(open("safe")).Redis(t.Context())
	require.NoError(t, err)

	require.NoError(t, rs.Kill())
	_, err = insp.Redis(t.Context())
	require.ErrorContains(t, err, "redis: ")
}

func TestRedisThatKnowsLittleIsDescribed(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		info, err := b.Inspector.Redis(b.Context())
		require.NoError(b, err)
		require.Equal(b, []string{
			"AOF", "Eviction", "FSync", "LastSnapshot", "MaxMemory", "Mode", "Replicas", "Role", "Snapshots", "UsedMemory", "Version",
		}, info.Missing)
		require.Positive(b, info.Clients)
		require.True(b, info.Time.Equal(time.Now()))
	})
}
