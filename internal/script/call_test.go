package script

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/link"
)

// A script that Redis does not know was not carried out, so only its text counts. After two
// writings of its digest one of them may have been.
func TestRequestCountsItsWritings(t *testing.T) {
	t.Parallel()
	refused := errors.New("connection refused")
	for n, want := range map[int]bool{0: true, 1: true, 2: false} {
		r := &Request{Keys: 7}
		for range n {
			word, err := r.MarshalBinary()
			require.NoError(t, err)
			require.Equal(t, "7", string(word))
		}
		r.Answered() // NOSCRIPT
		require.Equal(t, want, isUndone(r.Judge(refused)), "%d writings", n)
	}
	require.Equal(t, "7", fmt.Sprint(&Request{Keys: 7}))
}

// What became of a call that was answered too late is unknown.
func TestSlowAnswerIsUncertain(t *testing.T) {
	t.Parallel()
	var p link.Pulse
	began := time.Now()
	require.NoError(t, p.Feel("q:{a}:ready", began, nil))
	slow := p.Feel("q:{a}:pool", began, context.DeadlineExceeded)
	require.True(t, link.Slowly(slow))
	require.False(t, Certain(slow))
}
