package redistest

import (
	"os"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/embedded"
)

// Need skips a test if there is no redis-server. If the environment variable CI is set, it fails
// the test instead.
func Need(t testing.TB) {
	t.Helper()
	_, err := binary()
	switch {
	case err == nil:
	case os.Getenv("CI") != "":
		t.Fatalf("CI must have redis-server: %v", err)
	default:
		t.Skipf("this test needs redis-server, which is not installed: %v", err)
	}
}

// NeedTLS is Need for a test that needs a redis-server that was built with TLS.
func NeedTLS(t testing.TB) {
	t.Helper()
	Need(t)
	switch {
	case speaksTLS():
	case os.Getenv("CI") != "":
		t.Fatalf("CI must have a redis-server with TLS")
	default:
		t.Skipf("this test needs a redis-server with TLS, which this one was built without")
	}
}

// Each runs a test on an embedded Redis, as the subtest "miniredis", and on the shared real one, as
// the subtest "redis".
//
// The client is closed at the end of the subtest. Take the keys from Prefix, because other tests
// use the real server at the same time.
func Each(t *testing.T, test func(t *testing.T, rdb redis.UniversalClient)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) {
		needNoRoles(t)
		r := embedded.New()
		t.Cleanup(r.Close)
		rdb := r.Client()
		t.Cleanup(func() { _ = rdb.Close() })
		test(t, rdb)
	})
	t.Run("redis", func(t *testing.T) {
		test(t, Shared(t))
	})
}

// Unused returns a client of go-redis that is not to be used. It is closed at the end of the test.
//
// Its address is a number. go-redis looks the name of its address up when a client is made, also
// that of the default address, and a look-up that a bubble shares with another test ends the
// process.
func Unused(t testing.TB) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Shared returns a new client of the one real server that all tests of the process share.
//
// The client is closed at the end of the test. The server starts with the first call, has no
// persistence and ends with the process. A test must leave it unchanged: no FLUSHDB, no CONFIG SET.
// For those, start a server with Start. Calls Need.
func Shared(t testing.TB) *redis.Client {
	t.Helper()
	Need(t)
	s, err := sharedServer()
	if err != nil {
		t.Fatal(err)
	}
	return s.Client(t)
}

var sharedServer = sync.OnceValues(func() (*Server, error) {
	return StartE("")
})

// SharedCluster returns the cluster of three masters that all tests of the process share.
//
// It starts with the first call and ends with the process; the rules of Shared apply to it too.
// Calls Need.
func SharedCluster(t testing.TB) *Cluster {
	t.Helper()
	Need(t)
	c, err := sharedCluster()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var sharedCluster = sync.OnceValues(func() (*Cluster, error) {
	return StartClusterE("", 3, 0)
})
