package web

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// filled returns the bytes that a cache says it has, and those of its entries.
func (c *cache) filled() (said, real int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.entries {
		real += 1 + len(key) + sizeOf(e.value)
	}
	return c.bytes, real
}

func TestCacheIsBoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cache{every: time.Minute}
		get := func(key string, size int) {
			v, err := c.get(t.Context(), key, 0, func(context.Context) (any, error) { return strings.Repeat("x", size), nil })
			require.NoError(t, err)
			require.Len(t, v, size)
		}
		for i := range 100 {
			get(fmt.Sprint("large", i), 1<<20)
			said, real := c.filled()
			require.Equal(t, real, said)
			require.LessOrEqual(t, said, cacheBytes)
		}
		require.Greater(t, len(c.entries), 20, "what fits is kept")
		get("too large", cacheBytes+1)
		require.NotContains(t, c.entries, "too large")
		require.Greater(t, len(c.entries), 20, "and it displaces nothing")
		for i := range 2 * cacheEntries {
			get(fmt.Sprint("small", i), 10)
			require.LessOrEqual(t, len(c.entries), cacheEntries)
		}
		said, real := c.filled()
		require.Equal(t, real, said)

		time.Sleep(time.Minute)
		get("one", 1)
		require.Len(t, c.entries, 1, "what is too old is dropped when another is added")
		c.forget()
		said, _ = c.filled()
		require.Zero(t, said)
	})
}

// A slow reader whose entry was dropped meanwhile does not spoil the sum.
func TestCacheForgetsWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cache{every: time.Minute}
		slow := func(context.Context) (any, error) { time.Sleep(time.Second); return strings.Repeat("x", 1000), nil }
		go func() { _, _ = c.get(t.Context(), "slow", 0, slow) }()
		synctest.Wait()
		c.forget()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		said, real := c.filled()
		require.Zero(t, said)
		require.Zero(t, real)
		_, err := c.get(t.Context(), "slow", 0, slow)
		require.NoError(t, err)
		said, real = c.filled()
		require.Positive(t, said)
		require.Equal(t, real, said)
	})
}

// A slow reader whose entry another one has replaced meanwhile does not spoil the sum either.
func TestCacheForgetsWhatWasReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cache{every: time.Minute}
		read := func(took time.Duration) {
			_, err := c.get(t.Context(), "key", 0, func(context.Context) (any, error) {
				time.Sleep(took)
				return strings.Repeat("x", 1000), nil
			})
			require.NoError(t, err)
		}
		go read(time.Second)
		synctest.Wait()
		c.forget()
		read(0)
		time.Sleep(2 * time.Second)
		said, real := c.filled()
		require.Positive(t, real)
		require.Equal(t, real, said)
	})
}

func TestSizeOf(t *testing.T) {
	long := strings.Repeat("x", 1000)
	job := &delayq.JobInfo{Errors: []delayq.AttemptError{{Message: long, Stack: long}}}
	job.Payload, job.Headers = []byte(long), map[string]string{"a": long}
	for _, value := range []any{
		long, []byte(long), &long, []string{long}, [1]string{long}, map[string]string{long: ""}, struct{ any }{long}, []*string{&long}, make([]byte, 0, 1000),
	} {
		size := sizeOf(value)
		require.GreaterOrEqual(t, size, 1000, "%T", value)
		require.Less(t, size, 1100, "%T", value)
	}
	require.GreaterOrEqual(t, sizeOf(&delayq.Page{Jobs: []*delayq.JobInfo{job, job}}), 8000)
	require.Less(t, sizeOf(time.Now()), 100, "all times share their zone")
	require.Zero(t, sizeOf(nil))
}
