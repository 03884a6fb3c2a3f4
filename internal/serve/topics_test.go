package serve

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/run"
)

// A topic that comes when the server has begun to stop is refused, and is not half there: its loops
// would be nil.
func TestHandleWhenTheServerStops(t *testing.T) {
	a := topicOf(t, 1, func(context.Context, *run.Run) error { return nil }, nil)
	s := a.Server
	s.serve(nil)
	require.True(t, s.HasStopped())
	require.ErrorIs(t, s.Handle(0, Offer{TopicConfig: TopicConfig{Topic: "late"}}), ErrUsed)
	require.False(t, s.Handles("late"))
	require.ErrorIs(t, s.Handle(1, Offer{TopicConfig: TopicConfig{Topic: "late.*"}}), ErrUsed)
}
