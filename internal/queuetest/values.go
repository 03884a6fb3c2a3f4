package queuetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// ErrTest is an error of a handler.
var ErrTest = errors.New("does not work")

// ErrOf returns the error of a call that returns a value too.
func ErrOf[T any](_ T, err error) error { return err }

// Nothing is a handler that does nothing.
func Nothing(context.Context, *delayq.Job) error { return nil }

// TopicsOnAllNodes returns topics for a cluster of three masters. Each master has some of them.
func TopicsOnAllNodes() (topics []string) {
	for i := range 12 {
		topics = append(topics, fmt.Sprintf("topic %d", i))
	}
	return topics
}

// ClockOf returns the time by Redis's clock.
func ClockOf(t *testing.T, rdb redis.UniversalClient) time.Time {
	t.Helper()
	now, err := rdb.Time(t.Context()).Result()
	require.NoError(t, err)
	return now
}

// ZMember returns the entry of a sorted set whose score is a time.
func ZMember(id string, at time.Time) redis.Z {
	return redis.Z{Score: float64(at.UnixMilli()), Member: id}
}
