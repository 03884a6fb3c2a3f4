package serve

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// A partsBench is a server in a bubble, whose topics get partitions by hand.
type partsBench struct {
	*testing.T
	rdb  *redis.Client
	s    *Server
	stop func()

	mu      sync.Mutex
	log     strings.Builder
	running int
	most    int               // handlers at a time, since the last look
	ran     map[string]string // by ID: the topic that the handler was told
	ended   map[string]int    // by topic: the outcomes that hooks were told
	took    func(r *run.Run) time.Duration
}

// inParts makes a server, and runs it after setup has given it its topics.
func inParts(t *testing.T, c Config, setup func(b *partsBench), test func(b *partsBench)) {
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		b := &partsBench{T: t, rdb: rdb, ran: make(map[string]string), ended: make(map[string]int)}
		b.took = func(*run.Run) time.Duration { return 0 }
		c.ID, c.Prefix, c.Lease, c.Tick, c.Drain, c.DeadCount = "me", "p", 30*time.Second, time.Second, time.Second, 1000
		c.Judge, c.Observer = lenient{}, told(func(r settle.Row) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.ended[r.Run.Topic]++
		})
		b.s = New(rdb, c)
		setup(b)
		b.s.Begin(slog.New(slog.NewTextHandler(b, nil)))
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- b.s.Run(ctx) }()
		b.stop = sync.OnceFunc(func() {
			stop()
			require.NoError(t, <-over)
		})
		defer b.stop()
		b.pass(0)
		test(b)
	})
}

func (b *partsBench) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// handles makes the server handle a topic.
func (b *partsBench) handles(like TopicConfig) {
	like.Task = handler(b.handle)
	like.Defaults.Retry = -1
	require.NoError(b, b.s.Handle(100, Offer{TopicConfig: like}))
}

func (b *partsBench) handle(ctx context.Context, r *run.Run) error {
	b.mu.Lock()
	b.running++
	b.most = max(b.most, b.running)
	b.ran[r.ID] = r.Topic
	took := b.took(r)
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.running--
	}()
	select {
	case <-time.After(took):
	case <-ctx.Done():
	}
	return nil
}

// Write takes a line of the log.
func (b *partsBench) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.Write(line)
}

func (b *partsBench) logged() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.String()
}

// started returns the IDs of the jobs whose handlers were called, with the topics that these were
// told.
func (b *partsBench) started() map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.ran)
}

// now returns how many handlers run.
func (b *partsBench) now() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.running
}

// outcomes returns how many outcomes hooks were told, by topic.
func (b *partsBench) outcomes() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.ended)
}

// lasts sets how long a handler runs.
func (b *partsBench) lasts(took func(r *run.Run) time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.took = took
}

// busiest returns how many handlers have run at a time since the last call.
func (b *partsBench) busiest() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := b.most
	b.most = b.running
	return most
}

// at is the hand of a topic, or of a partition of it.
func (b *partsBench) at(topic string) *hand.Hand { return hand.New(b, b.rdb, "p", topic) }

// partition makes the map of a topic, and returns the places in it, the home first.
func (b *partsBench) partition(topic, text string) []string {
	b.Helper()
	h := b.at(topic)
	r, err := h.TryPartition(h.Map(), text, "")
	require.NoError(b, err)
	require.Equal(b, "made", r.Text(2))
	m, err := part.ParseMap(text)
	require.NoError(b, err)
	b.pass(0)
	return m.Places(topic)
}

// served returns the names of what the server serves.
func (b *partsBench) served() (names []string) {
	for _, t := range b.s.Topics.all() {
		names = append(names, t.Keys.Topic)
	}
	return names
}

// A server serves the partitions of a topic as soon as there are any. Their jobs are those of the
// topic for its handler and for hooks, in heartbeats and in its health, and the set of topics does
// not have them.
func TestPartsAreServed(t *testing.T) {
	t.Parallel()
	inParts(t, Config{Concurrency: 4}, func(b *partsBench) { b.handles(TopicConfig{Topic: "mail"}) }, func(b *partsBench) {
		b.lasts(func(*run.Run) time.Duration { return time.Minute })
		b.at("mail").Put("+0", "h1", "h2")
		b.pass(time.Second)
		places := b.partition("mail", "0:1 1:3")
		require.Equal(b, places, b.served())
		for i, place := range places[1:] {
			b.at(place).Put("+0", fmt.Sprint("p", i))
		}
		b.pass(time.Second)
		require.Equal(b, 4, b.busiest())
		for id, topic := range b.started() {
			require.Equal(b, "mail", topic, id)
		}
		h := b.s.Health()
		require.Len(b, h.Topics, 1)
		require.Equal(b, topicHealth{Topic: "mail", Workers: 4, Running: 4, Held: 4, Oldest: h.Topics[0].Oldest, Ran: 2 * time.Second}, h.Topics[0])
		require.Contains(b, []string{"h1", "h2"}, h.Topics[0].Oldest)
		b.pass(10 * time.Second)
		texts, err := script.Heartbeats(b.Context(), b.rdb, "p")
		require.NoError(b, err)
		require.NotContains(b, texts["me"], "mail#")
		require.Contains(b, texts["me"], `"slots":4,"running":4,`)
		require.Contains(b, texts["me"], `"taken":2,`, "of the home: the others were taken before they had a heartbeat")
		b.pass(2 * time.Minute)
		require.Len(b, b.started(), 5)
		require.Equal(b, map[string]int{"mail": 5}, b.outcomes())
		require.Equal(b, []string{"mail"}, b.rdb.SMembers(b.Context(), "p:topics").Val())
		look, err := b.s.Look(b.Context())
		require.NoError(b, err)
		require.Equal(b, []string{"mail"}, look.Topics)
		b.stop()
		require.NotContains(b, b.logged(), "topic=mail#")
		require.NotContains(b, b.logged(), "level=ERROR")
	})
}

// A server that starts later, one that has lost its subscription for a while, and one that heard
// nothing at all find the partitions too.
func TestPartsAreFound(t *testing.T) {
	t.Parallel()
	inParts(t, Config{Concurrency: 4}, func(b *partsBench) {
		b.handles(TopicConfig{Topic: "mail"})
		require.NoError(b, b.rdb.HSet(b.Context(), "p:{mail}:all:parts", "map", "0:1 1:2", "last", 1).Err())
		b.at("tenant#1.0.a").Put("+0", "alone")
		require.NoError(b, b.rdb.SAdd(b.Context(), "p:topics", "tenant", "tenant#1.0.a").Err())
		require.NoError(b, b.rdb.HSet(b.Context(), "p:{tenant}:all:parts", "map", "1:1k", "last", 1).Err())
		b.handles(TopicConfig{Topic: "ten*"})
	}, func(b *partsBench) {
		require.Len(b, b.served(), 3+2)
		require.NoError(b, b.rdb.HSet(b.Context(), "p:{mail}:all:parts", "map", "0:1 1:2 2:3", "last", 2).Err())
		b.pass(PruneEvery + 2*time.Second)
		require.Len(b, b.served(), 6+2)
	})
}

// However a topic gets its partitions, and however long its handlers run, no more of them run at a
// time than its Concurrency allows, and they are as many as that while there are jobs.
func TestPartsShareTheConcurrency(t *testing.T) {
	t.Parallel()
	for seed := range uint64(redistest.Size(40)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 37))
			count := 1 + rnd.IntN(6)
			inParts(t, Config{Concurrency: count}, func(b *partsBench) {
				b.handles(TopicConfig{Topic: "mail"})
			}, func(b *partsBench) {
				long := rand.New(rand.NewPCG(seed, 38))
				b.lasts(func(*run.Run) time.Duration { return time.Duration(long.IntN(30)) * time.Millisecond })
				jobs, places := 0, []string{"mail"}
				put := func(n int) {
					for range n {
						b.at(places[rnd.IntN(len(places))]).Put("+"+fmt.Sprint(rnd.IntN(20)), fmt.Sprint("j", jobs))
						jobs++
					}
				}
				maps := []string{"0:1 1:3", "0:1 1:3 2:2k", "0:1 1:3 2:2k 3:5"}
				for _, text := range maps {
					put(15)
					b.pass(time.Duration(rnd.IntN(100)) * time.Millisecond)
					put(5)
					b.partition("mail", text)
					m, err := part.ParseMap(text)
					require.NoError(b, err)
					places = m.Open().Names("mail")
				}
				put(60)
				b.pass(30 * time.Millisecond)
				require.Equal(b, count, b.busiest())
				b.pass(5 * time.Second)
				require.Equal(b, count, b.busiest())
				require.Equal(b, jobs, len(b.started()))
				b.checkWorkers("mail")
			})
		})
	}
}

// checkWorkers checks that no place of a topic has a worker when nothing runs.
func (b *partsBench) checkWorkers(topic string) {
	b.Helper()
	for _, p := range b.s.Topics.Get(topic).places() {
		p.Mu.Lock()
		require.Zero(b, p.Workers.Busy)
		require.Zero(b, p.Workers.Has, p.Keys.Topic)
		require.Zero(b, p.Workers.Claimed)
		p.Mu.Unlock()
	}
}

// In a pool of the user, a topic with partitions is one member, with the share that it has without
// them.
func TestPartsOfATopicInAPool(t *testing.T) {
	t.Parallel()
	inParts(t, Config{Pools: map[string]int{"all": 8}, Concurrency: 8}, func(b *partsBench) {
		b.handles(TopicConfig{Topic: "mail", Pool: "all", Weight: 1})
		b.handles(TopicConfig{Topic: "sms", Pool: "all", Weight: 1})
	}, func(b *partsBench) {
		starts := make(map[string]int)
		b.lasts(func(r *run.Run) time.Duration {
			starts[r.Topic]++
			return time.Second
		})
		b.at("mail").Put("+0", hand.Numbered("h", 10)...)
		b.pass(time.Millisecond)
		for i, place := range b.partition("mail", "0:1 1:6")[1:] {
			b.at(place).Put("+0", hand.Numbered(fmt.Sprint("p", i, "-"), 12)...)
		}
		b.at("sms").Put("+0", hand.Numbered("s", 90)...)
		b.pass(4 * time.Second)
		b.mu.Lock()
		clear(starts)
		b.mu.Unlock()
		b.pass(12 * time.Second)
		require.Equal(b, 8, b.busiest())
		require.InDelta(b, 48, starts["mail"], 6)
		require.InDelta(b, 48, starts["sms"], 6)
		for _, one := range b.s.Health().Topics {
			require.Equal(b, "all", one.Pool)
		}
		b.pass(20 * time.Second)
		require.Len(b, b.started(), 10+6*12+90)
		b.checkWorkers("mail")
		b.checkWorkers("sms")
	})
}

// A topic on demand starts as many jobs as were asked for, wherever they are.
func TestPartsOnDemand(t *testing.T) {
	t.Parallel()
	inParts(t, Config{}, func(b *partsBench) { b.handles(TopicConfig{Topic: "mail", OnDemand: true}) }, func(b *partsBench) {
		b.lasts(func(*run.Run) time.Duration { return 20 * time.Second })
		b.at("mail").Put("+0", "h1", "h2", "h3")
		b.pass(0)
		require.Empty(b, b.started())
		b.s.Demand("mail", 1)
		b.pass(0)
		require.Len(b, b.started(), 1)
		places := b.partition("mail", "0:1 1:4")
		for i, place := range places[1:] {
			b.at(place).Put("+0", hand.Numbered(fmt.Sprint("p", i, "-"), 3)...)
		}
		b.pass(2 * time.Second)
		require.Len(b, b.started(), 1)
		for n := 2; n <= 9; n += 2 {
			b.s.Demand("mail", 2)
			b.pass(time.Second)
			require.Len(b, b.started(), 1+n)
			require.Equal(b, 1+n, b.s.Health().Topics[0].Workers)
		}
		b.pass(20 * time.Second)
		require.Len(b, b.started(), 9)
		b.s.Demand("mail", 10)
		b.pass(time.Second)
		require.Len(b, b.started(), 15, "all of them")
		b.pass(20 * time.Second)
		b.s.Demand("mail", -4)
		b.pass(time.Second)
		b.at(places[2]).Put("+0", "late", "later")
		b.pass(5 * time.Second)
		require.Len(b, b.started(), 15)
		require.Zero(b, b.s.Health().Topics[0].Workers)
		b.s.Demand("mail", 1)
		b.pass(5 * time.Second)
		require.Len(b, b.started(), 16)
		b.pass(20 * time.Second)
		b.checkWorkers("mail")
	})
}

// What was asked for and is withdrawn while a take is in flight starts no job, wherever that is.
func TestPartsOwe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		a := topicOf(t, 1, func(context.Context, *run.Run) error {
			<-release
			return nil
		}, nil)
		a.Workers.OnDemand, a.Workers.Count = true, 0
		a.shareWorkers()
		s := a.Server
		s.Demand("a", 3)
		n, free := a.reserve(false)
		require.Equal(t, []int{3, 3}, []int{n, free})
		s.Demand("a", -2)
		require.Zero(t, a.Workers.Idle())
		runs := a.taken(3)
		a.Workers.Coming -= 3
		for _, r := range runs {
			a.admit(r, nil)
		}
		synctest.Wait()
		require.Equal(t, 1, a.Workers.Busy)
		require.Len(t, a.Workers.Next, 2)
		s.Demand("a", -1) // the handler that is running has nobody who waits for it
		require.Empty(t, a.Workers.Next)
		require.Len(t, a.Outcomes.Rows, 2)
		s.Demand("a", 1)
		close(release)
		s.ending.running.Wait()
		require.Zero(t, a.Workers.shared.Total())
		require.Zero(t, a.Workers.Has)
	})
}

// A topic whose workers are all busy, so that it waits for one of them, gets the next one of the
// pool that it now shares.
func TestPartsOfABusyTopic(t *testing.T) {
	t.Parallel()
	inParts(t, Config{Concurrency: 1}, func(b *partsBench) { b.handles(TopicConfig{Topic: "mail"}) }, func(b *partsBench) {
		b.lasts(func(*run.Run) time.Duration { return 5 * time.Second })
		b.at("mail").Put("+0", "a", "b", "c")
		b.pass(time.Second)
		b.partition("mail", "0:1 1:2")
		b.pass(20 * time.Second)
		require.Len(b, b.started(), 3)
		require.Equal(b, 1, b.busiest())
	})
}

// A topic is removed with its partitions, and comes back with them.
func TestPartsGoWithTheTopic(t *testing.T) {
	t.Parallel()
	inParts(t, Config{Concurrency: 2}, func(b *partsBench) { b.handles(TopicConfig{Topic: "mail"}) }, func(b *partsBench) {
		b.lasts(func(*run.Run) time.Duration { return time.Minute })
		places := b.partition("mail", "0:1 1:2")
		b.at(places[1]).Put("+0", "a")
		b.pass(time.Second)
		require.ErrorIs(b, b.s.Remove(b.Context(), places[1]), ErrNoHandler)
		began := time.Now()
		require.NoError(b, b.s.Remove(b.Context(), "mail"))
		require.Equal(b, 59*time.Second, time.Since(began), "the handler of a partition is waited for")
		require.Empty(b, b.served())
		require.Equal(b, map[string]int{"mail": 1}, b.outcomes())
		b.at(places[2]).Put("+0", "b")
		b.pass(time.Minute)
		require.NotContains(b, b.started(), "b")
		b.handles(TopicConfig{Topic: "mail"})
		b.pass(time.Second)
		require.Equal(b, places, b.served())
		require.Contains(b, b.started(), "b")
	})
}

// A topic that a pattern has found stays as long as one of its partitions has a job.
func TestPartsOfAFoundTopic(t *testing.T) {
	t.Parallel()
	inParts(t, Config{Concurrency: 2}, func(b *partsBench) { b.handles(TopicConfig{Topic: "*"}) }, func(b *partsBench) {
		require.NoError(b, b.rdb.SAdd(b.Context(), "p:topics", "mail").Err())
		b.pass(FollowEvery)
		places := b.partition("mail", "0:1 1:2")
		require.Equal(b, places, b.served())
		b.at(places[2]).Put("+3600000", "a")
		require.NoError(b, b.rdb.SRem(b.Context(), "p:topics", "mail").Err())
		b.pass(2 * FollowAll)
		require.Equal(b, places, b.served())
		require.Equal(b, []string{"mail"}, b.rdb.SMembers(b.Context(), "p:topics").Val())
		_, err := b.at(places[2]).TryCancel("a")
		require.NoError(b, err)
		require.NoError(b, b.rdb.SRem(b.Context(), "p:topics", "mail").Err())
		b.pass(2 * FollowAll)
		require.Empty(b, b.served())
	})
}

// What runs note, and the end of their leases, is told the partition that has the job.
func TestPartsGetWhatIsTheirs(t *testing.T) {
	t.Parallel()
	inParts(t, Config{Concurrency: 3}, func(b *partsBench) { b.handles(TopicConfig{Topic: "mail"}) }, func(b *partsBench) {
		places := b.partition("mail", "0:1 1:2")
		b.lasts(func(*run.Run) time.Duration { return 50 * time.Second })
		h := b.at(places[1])
		h.Put("+0", "a", "b")
		b.pass(40 * time.Second)
		require.Equal(b, 2, int(b.rdb.HLen(b.Context(), h.Keys.Pool).Val()), "the leases were extended")
		require.Len(b, b.started(), 2)
		require.Equal(b, 2, b.now())
		_, err := h.TryCancel("a")
		require.NoError(b, err)
		b.pass(0)
		require.Equal(b, 1, b.now())
		b.pass(20 * time.Second)
		require.Zero(b, b.rdb.HLen(b.Context(), h.Keys.Pool).Val())
		require.False(b, slices.ContainsFunc(b.served(), func(name string) bool { return strings.Count(name, "#") > 1 }))
	})
}
