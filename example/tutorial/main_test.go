package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

func TestUnpaidOrderIsCancelledAfterThirtyDays(t *testing.T) {
	const month = 30 * 24 * time.Hour
	q := delayqtest.Start(t)
	q.Serve(func(server *delayq.Server) { Register(server, "test", 0) })

	require.NoError(t, PlaceOrder(t.Context(), q.Client, "unpaid", month))
	require.NoError(t, PlaceOrder(t.Context(), q.Client, "paid", month))
	q.AssertScheduled(cancelTopic, "unpaid", q.Now().Add(month))

	q.Advance(29 * 24 * time.Hour)
	open, err := PayOrder(t.Context(), q.Client, "paid")
	require.NoError(t, err)
	require.True(t, open)

	q.Advance(24 * time.Hour)
	q.AssertNone(cancelTopic) // "unpaid" was cancelled at the millisecond, "paid" never
	open, err = PayOrder(t.Context(), q.Client, "unpaid")
	require.NoError(t, err)
	require.False(t, open, "the order is no longer open")
}
