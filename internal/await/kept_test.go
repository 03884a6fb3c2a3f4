package await

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/script"
)

// A waiter that has the ID alone learns that a later job can have it. One that waits for the end of
// the incarnation that is kept learns of no other.
func TestKeptJobOfAClosedPlace(t *testing.T) {
	w := grounded(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // Next does not wait
	begin := func() *Waiter {
		r, err := w.Begin("t", "a", false)
		require.NoError(t, err)
		return r
	}
	ends := func(r *Waiter, want Kind) {
		t.Helper()
		a, err := r.Next(ctx)
		require.NoError(t, err)
		require.Equal(t, Answer{Kind: want, Nonce: "nonce--1", Outcome: Done, At: 5, Rest: "2:{}"}, a)
	}
	its := begin()
	w.next(script.Reply{"lnonce--1u"}, nil)
	by := begin()
	w.next(script.Reply{"knonce--1o 5 2:{}"}, nil)
	ends(by, Kept)
	_, err := its.Next(ctx)
	require.ErrorIs(t, err, context.Canceled, "it goes on")
	w.told("look 0 1 ta")
	w.next(script.Reply{"enonce--1o 5 2:{}"}, nil)
	ends(its, Ended)

	left := begin()
	w.mu.Lock()
	f := w.gather(w.topics["t"])
	w.topics["t"].flights++
	w.mu.Unlock()
	left.End()
	w.mu.Lock()
	w.land(f, script.Reply{"knonce--1o 5 2:{}"}, nil)
	w.mu.Unlock()
	require.Empty(t, w.topics["t"].targets)
	require.Zero(t, w.leaves, "Redis has registered nobody")

	for _, damaged := range []string{"k", "knonce--1", "knonce--1o", "knonce--1o x y", "knonce--1f 5 nonce--1"} {
		r := begin()
		w.next(script.Reply{damaged}, nil)
		_, err := r.Next(ctx)
		require.ErrorIs(t, err, script.ErrReply, damaged)
	}
}
