package tests

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// Whoever has read a running job does not cancel or replace a successor that has come since. The
// job itself looks as before.
func TestSuccessorIsSeenByIfUnchanged(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t)
	for name, opts := range map[string][]delayq.JobOption{
		"plain":   nil,
		"delayed": {delayq.ProcessIn(70 * time.Millisecond)},
		"key":     {delayq.Key("k"), delayq.ProcessIn(300 * time.Millisecond), delayq.Priority(time.Minute)},
		"past":    {delayq.ProcessAt(time.Now().Add(-time.Hour))},
		"at":      {delayq.ProcessAt(time.Now().Add(100 * time.Millisecond))},
		"plan":    {delayq.Key("k"), delayq.ProcessAtEach(time.Now().Add(100*time.Millisecond), time.Now().Add(time.Hour))},
	} {
		f := queuetest.NewFixture(t, rdb)
		f.Enqueue("x", opts...)
		given := f.Get("x").Due
		require.Eventually(t, func() bool { return f.Get("x").Due.Before(time.Now()) }, time.Minute, time.Millisecond)
		f.Hand.Promote()
		f.Hand.TakeOne("x")
		var read []*delayq.JobInfo
		for _, shy := range []delayq.JobOption{delayq.Latest(), delayq.Debounce(time.Hour, time.Hour), delayq.Latest()} {
			read = append(read, f.Get("x"))
			f.Enqueue("x", shy)
			now := f.Get("x")
			require.Equal(t, delayq.StateRunning, now.State, name)
			require.Equal(t, given, now.Due, name)
			require.Empty(t, now.DueReason, name)
			for _, info := range read {
				_, err := f.Client.Dequeue(t.Context(), "topic", "x", delayq.IfUnchanged(info))
				require.ErrorIs(t, err, delayq.ErrChanged, name)
				_, err = f.Client.Enqueue(t.Context(), "topic", "x", nil, delayq.Replace(), delayq.IfUnchanged(info))
				require.ErrorIs(t, err, delayq.ErrChanged, name)
			}
		}
		state, err := f.Client.Dequeue(t.Context(), "topic", "x", delayq.IfUnchanged(f.Get("x")))
		require.NoError(t, err, name)
		require.Equal(t, delayq.StateRunning, state)
	}
}

// Latest and Debounce store a job whatever the old one is like, so they refuse IfUnchanged.
func TestIfUnchangedNeedsReplace(t *testing.T) {
	t.Parallel()
	f := queuetest.NewFixture(t, redistest.Shared(t))
	f.Enqueue("x")
	for _, opt := range []delayq.JobOption{delayq.Latest(), delayq.Debounce(time.Second, time.Minute)} {
		_, err := f.Client.Enqueue(t.Context(), "topic", "x", nil, opt, delayq.IfUnchanged(f.Get("x")))
		require.ErrorIs(t, err, delayq.ErrInvalid)
		require.ErrorContains(t, err, "needs Replace or ReplaceDead")
	}
}
