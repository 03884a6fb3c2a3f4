package delayqtest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// A server of Serve drains for a second, unless the options set another time.
func TestServeTakesADrain(t *testing.T) {
	for name, c := range map[string]struct {
		opts  []delayq.ServerOption
		cause error
		took  time.Duration
	}{
		"default": {nil, delayq.ErrShutdown, time.Second},
		"longer":  {[]delayq.ServerOption{delayq.Drain(3 * time.Second)}, nil, 1500 * time.Millisecond},
		"shorter": {[]delayq.ServerOption{delayq.Drain(500 * time.Millisecond)}, delayq.ErrShutdown, 500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := delayqtest.Start(t)
				q.Unfreeze()
				var cause error
				stop, err := q.Queue.Serve(handle(func(ctx context.Context, _ *delayq.Job) error {
					select {
					case <-time.After(1500 * time.Millisecond):
					case <-ctx.Done():
					}
					cause = context.Cause(ctx)
					return cause
				}, "mail"), c.opts...)
				require.NoError(t, err)
				enqueue(t, q, "mail", "a", 0)
				synctest.Wait()
				began := time.Now()
				require.NoError(t, stop())
				require.Equal(t, c.took, time.Since(began))
				require.Equal(t, c.cause, cause)
			})
		})
	}
}
