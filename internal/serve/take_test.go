package serve

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/run"
)

// hanging is a hook of a client whose calls get no reply. The channel is closed by the first one.
type hanging chan struct{}

func (hanging) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hanging) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, _ redis.Cmder) error {
		close(h)
		<-ctx.Done()
		return ctx.Err()
	}
}

func (hanging) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A stop ends the pop that waits for a job, even if the client would repeat it: a cluster's client
// does when its connection is closed. Takes in flight need that time.
func TestStopEndsTheWaitForJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := topicOf(t, 1, func(context.Context, *run.Run) error { return nil }, nil)
		popping := make(chan struct{})
		a.Server.blocking.AddHook(hanging(popping))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			a.newTaker("").waitForJobs(ctx)
			a.taking.wait.pops.Wait()
			close(ended)
		}()
		<-popping
		began := time.Now()
		stop()
		<-ended
		require.Equal(t, began, time.Now(), "by the clock of the test")
	})
}
