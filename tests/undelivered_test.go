package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// undeliveredKey is the key of the jobs that runs of the topic "a" have handed over in vain.
const undeliveredKey = queuetest.Prefix + ":{a}:all:undelivered"

// Undelivered returns the refused jobs, the latest first, at most 100.
func TestUndelivered(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		list, err := b.Inspector.Undelivered(b.Context(), "a")
		require.NoError(b, err)
		require.Empty(b, list)
		b.Enqueue("b", "taken", delayq.ProcessIn(time.Hour))
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			require.NoError(b, job.Then("b", job.ID, nil))
			return job.Then("b", "taken", []byte("secret"))
		})
		for i := range 105 {
			b.Enqueue("a", fmt.Sprintf("run %03d", i))
			b.Pass(time.Second)
		}
		require.EqualValues(b, 105, b.Counter("a", delayq.CounterUndelivered))
		list, err = b.Inspector.Undelivered(b.Context(), "a")
		require.NoError(b, err)
		require.Len(b, list, 100)
		for i, u := range list {
			require.Equal(b, fmt.Sprintf("run %03d", 104-i), u.From)
			require.Equal(b, [2]string{"b", "taken"}, [2]string{u.Topic, u.ID})
			require.Contains(b, u.Reason, "duplicate")
			require.NotContains(b, u.Reason, "secret")
			require.WithinDuration(b, b.Began.Add(time.Duration(104-i)*time.Second), u.At, 100*time.Millisecond)
		}
		list, err = b.Inspector.Undelivered(b.Context(), "b")
		require.NoError(b, err)
		require.Empty(b, list, "it is kept where it was handed over")
	})
}

// Of a damaged entry is returned what can be read.
func TestUndeliveredBesideDamage(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	entries := map[string]delayq.UndeliveredJob{
		`{"at":1700000000000,"from":"f","topic":"t","id":"i","reason":"r"}`: {At: at, From: "f", Topic: "t", ID: "i", Reason: "r"},
		`{"at":1.7e+12,"id":"i","more":[1]}`:                                {At: at, ID: "i"},
		`{"at":"x","from":1,"topic":null,"id":["i"],"reason":"r"}`:          {Reason: "r"},
		`{"at":-1,"ID":"i","from":"` + "\xff" + `"}`:                        {From: "\ufffd"},
		`{"at":1e300,"topic":"t"}`:                                          {Topic: "t"},
		`{"at":1e999,"topic":"t"}`:                                          {Topic: "t"},
		`{"reason":"` + strings.Repeat("x", 600) + `"}`:                     {Reason: strings.Repeat("x", 497) + "…"},
		``:                          {Reason: "the entry is damaged: "},
		`null`:                      {Reason: "the entry is damaged: null"},
		`{"at":17`:                  {Reason: `the entry is damaged: {"at":17`},
		`["a"]`:                     {Reason: `the entry is damaged: ["a"]`},
		"\x00\xff{}":                {Reason: "the entry is damaged: \x00{}"},
		strings.Repeat("[", 20_000): {Reason: "the entry is damaged: " + strings.Repeat("[", 475) + "…"},
		`{}`:                        {},
	}
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		for entry, want := range entries {
			require.NoError(b, b.RDB.Del(b.Context(), undeliveredKey).Err())
			require.NoError(b, b.RDB.RPush(b.Context(), undeliveredKey, entry, `{"id":"next"}`).Err())
			list, err := b.Inspector.Undelivered(b.Context(), "a")
			require.NoError(b, err)
			require.Len(b, list, 2)
			require.True(b, list[0].At.Equal(want.At), entry)
			list[0].At = want.At
			require.Equal(b, want, list[0], entry)
			require.Equal(b, "next", list[1].ID)
		}
	})
}

// A wrong argument and a key of a wrong type are named.
func TestUndeliveredErrors(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		_, err := b.Inspector.Undelivered(b.Context(), "bad{}")
		require.ErrorIs(b, err, delayq.ErrInvalid)
		_, err = (*delayq.Inspector)(nil).Undelivered(b.Context(), "a")
		require.ErrorIs(b, err, delayq.ErrInvalid)
		require.NoError(b, b.RDB.Set(b.Context(), undeliveredKey, "x", 0).Err())
		_, err = b.Inspector.Undelivered(b.Context(), "a")
		require.ErrorContains(b, err, `undelivered topic "a"`)
		require.ErrorContains(b, err, "all:undelivered")
	})
}

// Stats tells since when the oldest job that was handed over waits, and that none waits.
func TestStatsTellTheOldestParcel(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		require.NoError(b, b.RDB.Set(b.Context(), queuetest.PoolKey("bad"), "x", 0).Err())
		b.Serve("a", func(_ context.Context, job *delayq.Job) error { return job.Then("bad", job.ID, nil) })
		b.Enqueue("a", "1")
		b.Pass(2 * time.Minute)
		b.Enqueue("a", "2")
		b.Pass(time.Second)
		stats := b.Stats("a")
		require.EqualValues(b, 2, stats.Parcels)
		require.WithinDuration(b, b.Began, stats.OldestParcel, 100*time.Millisecond)
		require.Zero(b, stats.Overdue)
		require.Zero(b, stats.OldestOverdue)
		require.NoError(b, b.RDB.Del(b.Context(), queuetest.PoolKey("bad")).Err())
		b.Pass(time.Minute)
		require.Zero(b, b.Stats("a").Parcels)
		require.Zero(b, b.Stats("a").OldestParcel)
		require.EqualValues(b, 2, b.Stats("bad").Ready)
	})
}
