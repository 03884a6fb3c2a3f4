package tests

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// An entry that is no successor ends with the run. Ack and again would leave the job to each other
// for ever.
func TestSuccessorThatCannotBeRead(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for _, entry := range []string{"", "x", "5 ", "latest 5 x"} {
			f.Enqueue("x")
			held := f.Hand.TakeOne("x")
			require.NoError(t, f.RDB.HSet(t.Context(), f.Key("all:next"), "x", entry).Err())
			require.Equal(t, "o", f.Hand.Ack(held))
			_, err := f.Client.Get(t.Context(), "topic", "x")
			require.ErrorIs(t, err, delayq.ErrNotFound)
			require.Zero(t, f.RDB.Exists(t.Context(), f.Key("all:next")).Val())
			checkSound(f)
		}
	})
}

// Books of a wrong type do not make a successor run twice.
func TestSuccessorRunsOnceWithoutBooks(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x")
		held := f.Hand.TakeOne("x")
		follow(f, cellSorts[0], "new")
		mend := f.Hand.Deface("moved")
		require.Equal(t, "o", f.Hand.Ack(held))
		mend()
		require.Zero(t, f.RDB.Exists(t.Context(), f.Key("all:next")).Val())
		f.Hand.Hasten(time.Hour)
		f.Hand.Promote()
		held = f.Hand.TakeOne("x")
		require.Equal(t, "o", f.Hand.Ack(held))
		_, err := f.Client.Get(t.Context(), "topic", "x")
		require.ErrorIs(t, err, delayq.ErrNotFound)
	})
}
