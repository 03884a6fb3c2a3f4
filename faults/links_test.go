package faults_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/rig"
)

// Payloads that a link carries slowly: all of them run, in about the time that the link needs, and
// nobody else suffers. The bounds are those of a machine that has much else to do; the log has the
// figures.

// TestHundredMegabit has jobs of 100 KiB behind a link of 100 Mbit/s: 120 of them are a second.
func TestHundredMegabit(t *testing.T) {
	carry(t, load{link: rig.Mbit100, delay: 500 * time.Microsecond, size: 100 << 10, jobs: 500})
}

// TestGigabit has jobs of 1,000 KiB behind a link of 1 Gbit/s.
func TestGigabit(t *testing.T) {
	carry(t, load{link: rig.Gbit1, delay: 200 * time.Microsecond, size: 1000 << 10, jobs: 300})
}

// TestLargestPayloads has jobs of 64 MiB on loopback.
func TestLargestPayloads(t *testing.T) {
	carry(t, load{size: 64 << 20, jobs: 6})
}

// A load is what a case puts on a link.
type load struct {
	link  int64 // bytes a second; 0: loopback, without a proxy
	delay time.Duration
	size  int
	jobs  int
}

// Bounds of the cases.
const (
	pingLimit   = 20 * time.Millisecond // beside the time that one payload takes Redis
	onTime      = time.Second           // for the jobs of another topic on the same link
	shareOfLink = 0.8                   // of what the link carries
)

// carry runs a backlog of large jobs and holds it to all that is said of it.
func carry(t *testing.T, c load) {
	b := newLoneBench(t, "--appendonly", "no")
	ctx := t.Context()
	rdb := redis.UniversalClient(b.direct)
	if c.link > 0 {
		rdb = b.through(b.proxy)
		b.proxy.Narrow(c.link, c.delay)
	}
	one := b.oneTakes(ctx, c.size)
	could := b.linkCarries(ctx, rdb, c)

	client := delayq.NewClient(b.direct, delayq.Prefix(b.prefix), delayq.MaxPayload(64<<20))
	payload := slices.Repeat([]byte("payload "), c.size/8)
	for i := range c.jobs {
		_, err := client.Enqueue(ctx, "large", fmt.Sprint(i), payload)
		require.NoError(t, err)
	}

	var ran, late recorded
	var wrong atomic.Int64
	var running sync.WaitGroup
	end := make(chan struct{})
	stop := sync.OnceFunc(func() {
		close(end)
		running.Wait()
	})
	defer stop()
	begin := time.Now()
	b.serve(rdb, func(s *delayq.Server) {
		s.HandlerFunc("large", func(_ context.Context, job *delayq.Job) error {
			if len(job.Payload) != len(payload) || job.Attempt != 1 {
				wrong.Add(1)
			}
			ran.add(time.Since(begin))
			return nil
		})
		s.HandlerFunc("small", func(_ context.Context, job *delayq.Job) error {
			late.add(job.StartedAt.Sub(job.Due))
			return nil
		})
	}, delayq.Lease(30*time.Second))

	// Meanwhile: jobs of another topic, and another client of the same Redis.
	var pings recorded
	small := 0
	running.Go(func() {
		for ; !ended(end, 20*time.Millisecond); small++ {
			if _, err := client.Enqueue(ctx, "small", fmt.Sprint(small), nil, delayq.ProcessIn(30*time.Millisecond)); err != nil {
				t.Errorf("enqueue: %v", err)
				return
			}
		}
	})
	running.Go(func() {
		other := b.server.Client(t)
		for !ended(end, 2*time.Millisecond) {
			sent := time.Now()
			if err := other.Ping(ctx).Err(); err != nil {
				t.Errorf("ping: %v", err)
			}
			pings.add(time.Since(sent))
		}
	})
	eventually(t, "all jobs run", time.Minute+10*could, func() bool { return ran.len() >= c.jobs })
	stop()
	eventually(t, "all small jobs run", patient, func() bool { return late.len() >= small })
	b.drained(patient)

	took := slices.Max(ran.sorted())
	share := float64(could) / float64(took)
	slow := ran.len() - c.jobs
	t.Logf("%d jobs of %d KiB in %v, the link alone needs %v: %.0f %%; a job of another topic is late by %v at most (half of them by %v); "+
		"a ping takes %v at most, one in a hundred more than %v, and one payload takes Redis %v",
		c.jobs, c.size>>10, took.Round(time.Millisecond), could.Round(time.Millisecond), 100*share, late.at(1).Round(time.Millisecond),
		late.at(0.5).Round(time.Millisecond), pings.at(1), pings.at(0.99), one)
	require.Zero(t, slow, "each ran once")
	require.Zero(t, wrong.Load(), "with its payload, at the first attempt")
	info, err := client.Inspect(ctx, "large")
	require.NoError(t, err)
	require.EqualValues(t, c.jobs, info.Counters["acked"])
	for _, none := range []delayq.Counter{"reclaimed", "buried", "retried", "returned"} {
		require.Zero(t, info.Counters[none], none)
	}
	require.Less(t, late.at(1), onTime+2*one, "jobs of another topic")
	require.Less(t, pings.at(0.99), pingLimit+2*one, "another client")
	require.Greater(t, share, shareOfLink/2, "half of what it is to be: other work of this machine slows both, but not alike")
}

// ended waits for d, and tells whether end was closed.
func ended(end <-chan struct{}, d time.Duration) bool {
	select {
	case <-end:
		return true
	case <-time.After(d):
		return false
	}
}

// oneTakes is how long Redis needs to give one payload out of a script.
func (b *bench) oneTakes(ctx context.Context, size int) (longest time.Duration) {
	b.t.Helper()
	require.NoError(b.t, b.direct.HSet(ctx, "yardstick", "f", strings.Repeat("x", size)).Err())
	for range 3 {
		begin := time.Now()
		require.NoError(b.t, b.direct.Eval(ctx, "return redis.call('HMGET', KEYS[1], 'f')", []string{"yardstick"}).Err())
		longest = max(longest, time.Since(begin))
	}
	return longest
}

// linkCarries is how long all payloads take over the link, asked for one after the other by two
// connections, each answer about as large as that of a take.
func (b *bench) linkCarries(ctx context.Context, rdb redis.UniversalClient, c load) time.Duration {
	b.t.Helper()
	var left atomic.Int64
	left.Store(int64(c.jobs))
	each := max(1, (1<<20)/c.size)
	words := make([]string, each)
	for i := range words {
		words[i] = "'f'"
	}
	ask := redis.NewScript("return redis.call('HMGET', KEYS[1], " + strings.Join(words, ", ") + ")")
	require.NoError(b.t, ask.Load(ctx, b.direct).Err())
	begin := time.Now()
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			for left.Add(-int64(each)) >= 0 {
				if err := ask.Run(ctx, rdb, []string{"yardstick"}).Err(); err != nil {
					b.t.Errorf("yardstick: %v", err)
					return
				}
			}
		})
	}
	both.Wait()
	took := time.Since(begin)
	require.NoError(b.t, b.direct.Del(ctx, "yardstick").Err())
	return took
}

// A recorded is durations that were measured.
type recorded struct {
	mu   sync.Mutex
	list []time.Duration
}

func (r *recorded) add(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, d)
}

func (r *recorded) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.list)
}

func (r *recorded) sorted() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(slices.Values(r.list))
}

// at is the duration that so great a part of them do not exceed.
func (r *recorded) at(part float64) time.Duration {
	all := r.sorted()
	if len(all) == 0 {
		return 0
	}
	return all[int(part*float64(len(all)-1))]
}
