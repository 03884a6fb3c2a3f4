package delayq_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
)

// Thousands of schedules have a slot in the same millisecond: each has its one job, and all of them
// start in that millisecond. (F10, G7)
func TestManySchedulesAtOneSlot(t *testing.T) {
	inBubble(t, func(b *bubble) {
		schedules := redistest.Size(5000)
		for i := range schedules {
			b.schedule(fmt.Sprint(i), delayq.Every(time.Minute))
		}
		var rec recorder
		b.pass(50 * time.Second)
		for range 2 {
			b.serve("t", rec.then(nil))
		}
		b.pass(10*time.Second - time.Millisecond)
		require.Empty(b, rec.all())
		b.pass(time.Millisecond)
		require.Len(b, rec.times(), schedules)
		require.Len(b, rec.all(), schedules)
		for _, s := range rec.all() {
			require.Equal(b, time.Minute, s.at.Sub(b.began))
		}
	})
}
