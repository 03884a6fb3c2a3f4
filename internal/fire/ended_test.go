package fire

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Ended keeps the schedules whose slots can be fired, but no more than a firer looks at.
func TestEndedKeepsSchedules(t *testing.T) {
	var e Ended
	require.False(t, e.Note("s!5"), "nothing waits for a triggered run")
	require.True(t, e.Note("s@5"))
	require.Equal(t, []string{"s"}, e.Take())
	require.Empty(t, e.Take())
	for i := range maxEnded {
		require.True(t, e.Note(strconv.Itoa(i)+"@5"))
	}
	require.False(t, e.Note("one more@5"))
	require.Len(t, e.Take(), maxEnded)
}
