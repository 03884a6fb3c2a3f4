package redistest

import (
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/embedded"
)

// Bubble runs a test in a testing/synctest bubble with an embedded Redis, on the clock of the
// bubble.
//
// The time in the bubble begins at midnight UTC 2000-01-01 and moves only when all goroutines in it
// wait. After the cleanups of the test, the client and the Redis are closed as soon as all
// goroutines wait, so that no call is in flight that go-redis would try again. A goroutine that has
// not exited by then ends the test binary with a deadlock report. Calls that synctest forbids
// (t.Run, t.Parallel) are forbidden here too.
func Bubble(t *testing.T, test func(t *testing.T, r *embedded.Redis, rdb *redis.Client)) {
	t.Helper()
	needNoRoles(t)
	synctest.Test(t, func(t *testing.T) {
		r := embedded.New()
		t.Cleanup(r.Close)
		rdb := r.Client()
		t.Cleanup(func() {
			synctest.Wait()
			_ = rdb.Close()
		})
		test(t, r, rdb)
	})
}
