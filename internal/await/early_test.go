package await

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/script"
)

// grounded returns waits whose looks the test sends by hand.
func grounded(t *testing.T) *Waits {
	rdb := redis.NewClient(&redis.Options{Addr: "nowhere:0"})
	t.Cleanup(func() { _ = rdb.Close() })
	w := New(Wire{Redis: rdb}, 1)
	w.flights = w.most
	w.sub = &subscription{of: w, end: func() {}}
	return w
}

// next sends the looks of the topic t, and gives them a reply.
func (w *Waits) next(reply script.Reply, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.topics["t"]
	of.flights++
	w.land(w.gather(of), reply, err)
}

// While eight other clients wait, a client looks often for the job that it is about to enqueue.
func TestEarlyLookThatRegistersNobody(t *testing.T) {
	for answer, rest := range map[string]time.Duration{"p": lookEvery, "h": lookEvery, "P": pollEvery, "H": pollEvery} {
		w := grounded(t)
		_, err := w.BeginEarly("t", "a", "", "nonce--1", false)
		require.NoError(t, err)
		w.next(script.Reply{answer}, nil)
		w.timer.Stop()
		one := w.topics["t"].targets["a"][0]
		require.False(t, one.due.IsZero())
		require.Equal(t, rest/10, one.slack, answer)
	}
}

// Outcomes that lead round in a circle end the wait. A job that was enqueued again does not.
func TestOutcomesInACircle(t *testing.T) {
	w := grounded(t)
	r, err := w.Begin("t", "a", false)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // Next does not wait
	go1, go2 := "enonce--1f 1 nonce--2", "enonce--2f 1 nonce--1"
	w.next(script.Reply{go1}, nil)
	w.next(script.Reply{"lnonce--2r"}, nil)
	w.told("look 0 1 ta")
	w.next(script.Reply{go2}, nil)
	_, err = r.Next(ctx)
	require.ErrorIs(t, err, context.Canceled, "it lived in between")
	w.next(script.Reply{go1}, nil)
	a, err := r.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, Answer{Kind: Gone, Nonce: "nonce--1"}, a)
	require.Empty(t, w.topics["t"].targets)

	r, err = w.Begin("t", "a", false)
	require.NoError(t, err)
	hops := 0
	for ; len(w.topics["t"].targets) > 0; hops++ {
		w.next(script.Reply{fmt.Sprintf("e%08df 1 %08d", hops, hops+1)}, nil)
	}
	require.Equal(t, mostHops+1, hops)
	a, err = r.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, Gone, a.Kind)
}

// If Redis goes away while a job is on its way to it, a look that fails says nothing about the job:
// its caller goes on. If it goes away before the client is registered, the job is not enqueued.
func TestLookThatFailsDuringAnEnqueue(t *testing.T) {
	w := grounded(t)
	next := w.next
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // Next does not wait

	unsent, err := w.BeginEarly("t", "unsent", "", "nonce--1", false)
	require.NoError(t, err)
	next(script.Reply{}, io.EOF)
	_, err = unsent.Next(ctx)
	require.ErrorIs(t, err, io.EOF)

	sent, err := w.BeginEarly("t", "sent", "", "nonce--2", false)
	require.NoError(t, err)
	next(script.Reply{"p"}, nil)
	a, err := sent.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, Early, a.Kind)
	w.told("look 0 1 tsent")
	next(script.Reply{}, io.EOF)
	_, err = sent.Next(ctx)
	require.ErrorIs(t, err, context.Canceled, "it waits")
	_, trouble := sent.Seen()
	require.ErrorIs(t, trouble, io.EOF)
	sent.Expect(true)
	next(script.Reply{"p"}, nil)
	a, err = sent.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, Gone, a.Kind)
}
