package faults_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
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

// Payloads that a link carries slowly: all of them run, in about the time that a thin link needs,
// and no other client or topic suffers.
//
// What the machine does in the meantime slows a backlog and its yardstick, but not alike. So both
// are measured by turns, and a case has a few tries for what a clock measures. What does not depend
// on a clock holds in every try.

// TestHundredMegabit has jobs of 100 KiB behind a link of 100 Mbit/s: 120 of them are a second.
func TestHundredMegabit(t *testing.T) {
	carry(t, load{link: rig.Mbit100, delay: 500 * time.Microsecond, size: 100 << 10, jobs: 520})
}

// TestGigabit has jobs of 1,000 KiB behind a link of 1 Gbit/s.
func TestGigabit(t *testing.T) {
	carry(t, load{link: rig.Gbit1, delay: 200 * time.Microsecond, size: 1000 << 10, jobs: 300})
}

// TestLargestPayloads has jobs of 64 MiB on loopback, and no bounds of time. Its Redis keeps the
// memory of a reply for the next one: some machines need ten times as long to provide 64 MiB as to
// fill them, and a job that arrives too late goes back.
func TestLargestPayloads(t *testing.T) {
	t.Setenv("MALLOC_CONF", "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0") // of Debian's jemalloc
	carry(t, load{size: 64 << 20, jobs: 8})
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
	shareOfLink = 0.8                    // of what the link carries
	pingLimit   = 20 * time.Millisecond  // beyond the time of one payload
	callLimit   = 5 * time.Millisecond   // for half of such calls, beyond the time of two payloads
	onTime      = 100 * time.Millisecond // for another topic, beyond what two replies take
	linkTries   = 8
	mostOnLink  = 1.1 // bytes that Redis sends for one byte of a payload
)

// A passage is one backlog that went over a link, beside its yardstick.
type passage struct {
	took  time.Duration // until all jobs had run
	could time.Duration // what the link alone needs for their bytes
	one   time.Duration // how long one payload takes Redis, beside the link
	calls recorded      // how long each call that read as much took Redis, or more
	sent  int64         // bytes that Redis sent, for whomever
	late  recorded      // by how much jobs of another topic started late
	pings recorded      // of another client of the same Redis
}

func (p *passage) share() float64 { return float64(p.could) / float64(p.took) }

// broken lists the bounds of time that a passage broke.
func (p *passage) broken(c load) (list []string) {
	if c.link == 0 { // then the machine is the link; the module bench measures its speed
		return list
	}
	// One reply of the usual size, which all connections wait for, is on the link at a time.
	reply := p.calls.at(1) + time.Duration(1<<20)*time.Second/time.Duration(c.link)
	if p.share() < shareOfLink {
		list = append(list, "share of the link")
	}
	if p.late.at(1) > onTime+2*reply {
		list = append(list, "jobs of another topic")
	}
	if p.pings.at(1) > pingLimit+p.calls.at(1) {
		list = append(list, "another client")
	}
	if p.calls.at(0.5) > callLimit+2*p.one {
		list = append(list, "calls")
	}
	return list
}

// carry runs a backlog of large jobs and holds it to all that is said of it.
func carry(t *testing.T, c load) {
	b := newLoneBench(t, "--appendonly", "no", "--slowlog-log-slower-than", "500", "--slowlog-max-len", "10000")
	b.direct = b.waiting() // a reply of 64 MiB can take longer than the usual timeouts
	rdb := redis.UniversalClient(b.direct)
	if c.link > 0 {
		rdb = b.through(b.proxy)
		b.proxy.Narrow(c.link, c.delay)
	}
	var broken []string
	for try := range linkTries {
		p := b.pass(rdb, c, fmt.Sprint("large", try))
		t.Logf("%d jobs of %d KiB in %v, the link alone needs %v: %.0f %%, and Redis sent %.2f times their bytes; "+
			"a ping takes %v at most, one in a hundred more than %v; a call takes Redis %v at most, half of the long ones at most %v, and one payload %v; "+
			"a job of another topic is late by %v at most, half of them by %v",
			c.jobs, c.size>>10, p.took.Round(time.Millisecond), p.could.Round(time.Millisecond), 100*p.share(),
			float64(p.sent)/float64(c.jobs*c.size), p.pings.at(1), p.pings.at(0.99), p.calls.at(1), p.calls.at(0.5), p.one,
			p.late.at(1).Round(time.Millisecond), p.late.at(0.5).Round(time.Millisecond))
		if broken = p.broken(c); len(broken) == 0 {
			return
		}
	}
	t.Errorf("in none of %d tries all bounds of time held, in the last one not: %s", linkTries, strings.Join(broken, ", "))
}

// waiting is a client past the proxy that waits for slow replies.
func (b *bench) waiting() *redis.Client {
	o := *b.direct.Options()
	o.ReadTimeout, o.WriteTimeout = time.Minute, time.Minute
	rdb := redis.NewClient(&o)
	b.t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// pass runs one backlog between two measurements of its yardstick.
func (b *bench) pass(rdb redis.UniversalClient, c load, topic string) *passage {
	b.t.Helper()
	ctx := b.t.Context()
	p := &passage{}
	b.yardstick(rdb, c, p)
	least := p.one / 2

	client := delayq.NewClient(b.direct, delayq.Prefix(b.prefix), delayq.MaxPayload(64<<20))
	insp := delayq.NewInspector(b.direct, delayq.Prefix(b.prefix))
	payload := slices.Repeat([]byte("payload "), c.size/8)
	for i := range c.jobs {
		_, err := client.Enqueue(ctx, topic, fmt.Sprint(i), payload)
		require.NoError(b.t, err)
	}

	var ran recorded
	var wrong atomic.Int64
	var running sync.WaitGroup
	end := make(chan struct{})
	stop := sync.OnceFunc(func() {
		close(end)
		running.Wait()
	})
	defer stop()
	b.longCalls(&recorded{}, 0)
	sent := b.sent(ctx)
	begin := time.Now()
	server := b.serve(rdb, func(s *delayq.Server) {
		s.HandlerFunc(topic, func(_ context.Context, job *delayq.Job) error {
			if len(job.Payload) != len(payload) || job.Attempt != 1 {
				wrong.Add(1)
			}
			ran.add(time.Since(begin))
			return nil
		})
		s.HandlerFunc("small", func(_ context.Context, job *delayq.Job) error {
			p.late.add(job.StartedAt.Sub(job.Due))
			return nil
		})
	}, delayq.Lease(30*time.Second))

	// In the meantime: jobs of another topic, and another client of the same Redis.
	small := 0
	running.Go(func() {
		for ; !ended(end, 20*time.Millisecond); small++ {
			if _, err := client.Enqueue(ctx, "small", fmt.Sprint(small), nil, delayq.ProcessIn(30*time.Millisecond)); err != nil {
				b.t.Errorf("enqueue: %v", err)
				return
			}
		}
	})
	running.Go(func() { b.ping(&p.pings, end) })
	eventually(b.t, "all jobs run", time.Minute+20*p.could, func() bool { return ran.len() >= c.jobs })
	stop()
	eventually(b.t, "all small jobs run", patient, func() bool { return p.late.len() >= small })
	b.drained(patient)
	p.took, p.sent = slices.Max(ran.sorted()), b.sent(ctx)-sent
	b.longCalls(&p.calls, least)
	server.end(b.t)

	require.Equal(b.t, c.jobs, ran.len(), "each runs once")
	require.LessOrEqual(b.t, float64(p.sent), mostOnLink*float64(c.jobs*c.size), "Redis sends each once")
	require.Zero(b.t, wrong.Load(), "with its payload, at the first attempt")
	info, err := rig.StatsOf(ctx, insp, topic)
	require.NoError(b.t, err)
	require.EqualValues(b.t, c.jobs, info.Counters["acked"])
	for _, none := range []delayq.Counter{"reclaimed", "buried", "retried", "returned"} {
		require.Zero(b.t, info.Counters[none], none)
	}
	b.yardstick(rdb, c, p)
	return p
}

// ping is another client of Redis, until end is closed.
func (b *bench) ping(took *recorded, end <-chan struct{}) {
	other := b.server.Client(b.t)
	for !ended(end, 2*time.Millisecond) {
		asked := time.Now()
		if err := other.Ping(b.t.Context()).Err(); err != nil {
			b.t.Errorf("ping: %v", err)
		}
		took.add(time.Since(asked))
	}
}

// ended waits for d, and reports whether end was closed.
func ended(end <-chan struct{}, d time.Duration) bool {
	select {
	case <-end:
		return true
	case <-time.After(d):
		return false
	}
}

// sent is how many bytes Redis has sent so far.
func (b *bench) sent(ctx context.Context) int64 {
	b.t.Helper()
	info := b.direct.InfoMap(ctx, "stats")
	require.NoError(b.t, info.Err())
	n, err := strconv.ParseInt(info.Item("Stats", "total_net_output_bytes"), 10, 64)
	require.NoError(b.t, err)
	return n
}

// longCalls adds the durations of the calls since the last time that took Redis that long, and at
// least half a millisecond.
func (b *bench) longCalls(to *recorded, least time.Duration) {
	b.t.Helper()
	ctx := b.t.Context()
	list, err := b.direct.SlowLogGet(ctx, -1).Result()
	require.NoError(b.t, err)
	for _, e := range list {
		if e.Duration >= least {
			to.add(e.Duration)
		}
	}
	require.NoError(b.t, b.direct.SlowLogReset(ctx).Err())
}

// yardstick measures a link without delayq, with half of the payloads of a passage: the time that
// the link needs for them, and the time that one of them takes Redis.
func (b *bench) yardstick(rdb redis.UniversalClient, c load, p *passage) {
	b.t.Helper()
	ctx := b.t.Context()
	require.NoError(b.t, b.direct.HSet(ctx, "yardstick", "f", strings.Repeat("x", c.size)).Err())
	p.could += b.read(rdb, 2, c.jobs/2, max(1, (1<<20)/c.size))
	var calls recorded
	b.longCalls(&recorded{}, 0)
	b.read(b.direct, 1, 5, 1)
	b.longCalls(&calls, 0)
	p.one = max(p.one, calls.at(1))
	require.NoError(b.t, b.direct.Del(ctx, "yardstick").Err())
}

// read is how long n payloads take a client with so many connections, each asking for the next ones
// after a reply. Replies are about as large as those of a take.
func (b *bench) read(rdb redis.UniversalClient, connections, n, each int) time.Duration {
	b.t.Helper()
	ctx := b.t.Context()
	ask := redis.NewScript("return redis.call('HMGET', KEYS[1]" + strings.Repeat(", 'f'", each) + ")")
	require.NoError(b.t, ask.Load(ctx, b.direct).Err())
	var left atomic.Int64
	left.Store(int64(n))
	begin := time.Now()
	var all sync.WaitGroup
	for range connections {
		all.Go(func() {
			for left.Add(-int64(each)) >= 0 {
				if err := ask.Run(ctx, rdb, []string{"yardstick"}).Err(); err != nil {
					b.t.Errorf("yardstick: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	return time.Since(begin)
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
