package commit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// An unreadable lets commands about a key fail while it is set.
type unreadable struct {
	key string
	set atomic.Bool
}

var errUnreadable = errors.New("unreadable")

func (u *unreadable) DialHook(next redis.DialHook) redis.DialHook { return next }

func (u *unreadable) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if u.set.Load() && slices.Contains(cmd.Args(), any(u.key)) {
			cmd.SetErr(errUnreadable)
			return errUnreadable
		}
		return next(ctx, cmd)
	}
}

func (u *unreadable) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// An aging is a client that has learnt a map with four generations, of which three leave it then.
type aging struct {
	*testing.T
	*caller
	home *script.Keys
	rdb  *redis.Client
	n    int
}

func agingBubble(t *testing.T, test func(a *aging)) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		a := &aging{t, newCaller(rdb, "p"), script.NewKeys("p", "topic"), rdb, 0}
		for n := range 3 {
			_, err := newCaller(rdb, "p").Resize(t.Context(), "topic", part.Generation{Parts: 2 + n}, fewSettings)
			require.NoError(t, err)
		}
		_, err := a.ReadMap(t.Context(), "topic")
		require.NoError(t, err)
		a.leaves("3:4")
		test(a)
	})
}

// leaves sets the map.
func (a *aging) leaves(m string) {
	require.NoError(a, a.rdb.HSet(a.Context(), a.home.Parts, "map", m).Err())
}

// put stores a job, and returns the calls.
func (a *aging) put() []string {
	a.Helper()
	before := len(a.log.calls())
	a.n++
	o := job{when: "+3600000"}.store(a, "topic", fmt.Sprint(a.n))
	require.NoError(a, a.Do(a.Context(), o))
	require.EqualValues(a, script.LetterStored, o.Letter)
	return a.log.calls()[before:]
}

// A client asks generations that have left the map for a minute, and then reads the map again. One
// of a single generation it does not.
func TestMapsAge(t *testing.T) {
	agingBubble(t, func(a *aging) {
		const put, read = "enqueue 1", "part_map 0"
		long := []string{put, put, put, put}
		require.Equal(a, long, a.put())
		time.Sleep(mapServes)
		require.Equal(a, long, a.put())
		time.Sleep(time.Millisecond)
		require.Equal(a, []string{read, put}, a.put())
		require.Equal(a, []string{put}, a.put())
		time.Sleep(24 * time.Hour)
		require.Equal(a, []string{put}, a.put())

		a.leaves("2:3 3:4")
		_, err := a.ReadMap(a.Context(), "topic")
		require.NoError(a, err)
		for range 3 {
			require.Equal(a, []string{put, put}, a.put())
			time.Sleep(mapServes + 1)
			require.Equal(a, []string{read, put, put}, a.put())
		}
	})
}

// A batch reads an old map once.
func TestMapsAgeInBatches(t *testing.T) {
	agingBubble(t, func(a *aging) {
		time.Sleep(mapServes + 1)
		before := len(a.log.calls())
		b := a.NewBatch(a.Context(), Enqueue, 100, func(_ int, o *Op) error { return o.Err })
		for n := range 100 {
			b.Put(n, job{when: "+3600000"}.store(a, "topic", fmt.Sprint("job", n)))
		}
		b.Send()
		b.Close()
		calls, jobs := a.log.calls()[before:], 0
		require.Equal(a, "part_map 0", calls[0])
		for _, call := range calls[1:] {
			n := 0
			_, err := fmt.Sscanf(call, "enqueue %d", &n)
			require.NoError(a, err, call)
			jobs += n
		}
		require.Equal(a, 100, jobs)
	})
}

// While Redis cannot say the map, the old one serves, and is read again each minute.
func TestOldMapServes(t *testing.T) {
	agingBubble(t, func(a *aging) {
		away := &unreadable{key: a.home.Parts}
		a.rdb.AddHook(away)
		away.set.Store(true)
		for range 3 {
			time.Sleep(mapServes + 1)
			require.Equal(a, []string{"part_map 0", "enqueue 1", "enqueue 1", "enqueue 1", "enqueue 1"}, a.put())
		}
		away.set.Store(false)
		require.Len(a, a.put(), 4)
		time.Sleep(mapServes + 1)
		require.Equal(a, []string{"part_map 0", "enqueue 1"}, a.put())
	})
}

// A topic that has no partitions any more has its jobs at home, also for a client that knew some.
func TestMapsEnd(t *testing.T) {
	agingBubble(t, func(a *aging) {
		time.Sleep(mapServes + 1)
		require.NoError(a, a.rdb.Del(a.Context(), a.home.Parts, a.home.Tombs).Err())
		require.Equal(a, []string{"part_map 0", "enqueue 1"}, a.put())
		require.Equal(a, []string{"enqueue 1"}, a.put())
		n, err := a.rdb.HLen(a.Context(), a.home.Pool).Result()
		require.NoError(a, err)
		require.EqualValues(a, 2, n)
	})
}

// The maps of some topics are known, and not those of more.
func TestMapsAreBounded(t *testing.T) {
	var m mapped
	m.reads("unknown")
	require.Nil(t, m.of("unknown"), "a reading that has begun remembers nothing")
	full := make(map[string]*knownMap, mostMaps)
	for n := range mostMaps {
		full[fmt.Sprint(n)] = new(knownMap)
	}
	m.all.Store(&full)
	m.set("more", part.Map{{Number: 1, Parts: 2}})
	require.Len(t, *m.all.Load(), 1)
	require.Len(t, m.of("more"), 1)
	m.set("more", nil)
	require.Empty(t, *m.all.Load())
	require.Nil(t, m.of("more"))
}
