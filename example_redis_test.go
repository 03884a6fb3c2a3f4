package delayq_test

import (
	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/embedded"
)

// openRedis stands for redis.NewClient(&redis.Options{Addr: "localhost:6379"}): a Redis inside the
// process, so that the examples run anywhere.
func openRedis() (rdb *redis.Client, end func()) {
	r := embedded.New()
	rdb = r.Client()
	return rdb, func() {
		_ = rdb.Close() // it holds nothing to lose
		r.Close()
	}
}
