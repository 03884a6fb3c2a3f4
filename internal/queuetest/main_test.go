package queuetest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLeftGoroutinesSeesALeak(t *testing.T) {
	// Not parallel: the goroutines of other tests would be seen as well, which does no harm but
	// proves nothing.
	leak := make(chan struct{})
	go func() { <-leak }()
	defer close(leak)
	require.Contains(t, leftGoroutines(0), "TestLeftGoroutinesSeesALeak.func1")
}
