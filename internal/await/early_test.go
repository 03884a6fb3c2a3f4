package await

import (
	"context"
	"io"
	"testing"

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

// If Redis goes away while a job is on its way to it, a look that fails says nothing about the job:
// its caller goes on. If it goes away before the client is registered, the job is not enqueued.
func TestLookThatFailsDuringAnEnqueue(t *testing.T) {
	w := grounded(t)
	next := func(reply script.Reply, err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		of := w.topics["t"]
		of.flights++
		w.land(w.gather(of), reply, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // Next does not wait

	unsent, err := w.BeginEarly("t", "unsent", "nonce--1", false)
	require.NoError(t, err)
	next(script.Reply{}, io.EOF)
	_, err = unsent.Next(ctx)
	require.ErrorIs(t, err, io.EOF)

	sent, err := w.BeginEarly("t", "sent", "nonce--2", false)
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
