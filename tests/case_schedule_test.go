package tests

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// Thousands of schedules have a slot in the same millisecond: each has its one job, and all of them
// start in that millisecond. (F10, G7)
func TestManySchedulesAtOneSlot(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		schedules := redistest.Size(5000)
		for i := range schedules {
			b.AddSchedule(fmt.Sprint(i), delayq.Every(time.Minute))
		}
		var rec queuetest.Recorder
		b.Pass(50 * time.Second)
		for range 2 {
			b.Serve("t", rec.Then(nil))
		}
		b.Pass(10*time.Second - time.Millisecond)
		require.Empty(b, rec.All())
		b.Pass(time.Millisecond)
		require.Len(b, rec.Times(), schedules)
		require.Len(b, rec.All(), schedules)
		for _, s := range rec.All() {
			require.Equal(b, time.Minute, s.At.Sub(b.Began))
		}
	})
}
