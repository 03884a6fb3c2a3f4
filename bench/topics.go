package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// topicSlots is the concurrency of each of many topics.
const topicSlots = 10

// manyTopics measures three things of a server with n topics: the connections
// and calls that it needs at rest, how late jobs start that are due at once on
// random topics, and how many connections it has while jobs of all topics run.
// Each topic has one job that is due in an hour. The peers have their default
// intervals.
func manyTopics(n int) func(context.Context, *bench, peer) (sample, error) {
	return func(ctx context.Context, b *bench, p peer) (_ sample, err error) {
		var handle atomic.Pointer[func(delivery)]
		names, works := make([]string, n), make([]topicWork, n)
		for i := range n {
			names[i] = fmt.Sprintf("topic-%d", i)
			works[i] = topicWork{names[i], topicSlots, func(d delivery) { (*handle.Load())(d) }}
			if err := fill(ctx, p, names[i], 0, 1, func(int) job { return job{in: delay} }); err != nil {
				return nil, err
			}
		}
		goroutines, heap := runtime.NumGoroutine(), liveHeap()
		first := newTally(n)
		handle.Store(new(first.handle))
		stop, err := p.work(ctx, workload{topics: works, plain: true})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, stop()) }()
		if err := b.onTopics(ctx, p, names, first, func(i int) int { return i }); err != nil {
			return nil, err
		}
		if err := sleep(ctx, b.sizes.idleSettle); err != nil {
			return nil, err
		}
		result := sample{
			figGoroutines: float64(runtime.NumGoroutine() - goroutines),
			figHeap:       float64(max(0, liveHeap()-heap)) / float64(n),
		}
		if err := b.asksWhenIdle(ctx, result); err != nil {
			return nil, err
		}
		if err := b.lateOnTopics(ctx, p, names, &handle, result); err != nil {
			return nil, err
		}
		load := newTally(b.sizes.topicLoad)
		handle.Store(new(load.handle))
		peak := b.watchConns(ctx)
		err = b.onTopics(ctx, p, names, load, func(int) int { return rand.IntN(n) })
		most, peakErr := peak()
		result[figConnsLoaded] = float64(most)
		return result, errors.Join(err, peakErr)
	}
}

// onTopics stores the jobs that t expects from 64 goroutines, due at once,
// each on a topic that pick chooses, and waits until all were handled.
func (b *bench) onTopics(ctx context.Context, p peer, names []string, t *tally, pick func(i int) int) error {
	err := inParallel(ctx, 64, t.n, func(ctx context.Context, i int, payload []byte) error {
		fillPayload(payload, i, time.Now())
		return p.enqueue(ctx, names[pick(i)], job{payload: payload})
	})
	if err != nil {
		return err
	}
	if _, err := t.wait(ctx); err != nil {
		return err
	}
	return t.check()
}

// asksWhenIdle adds the connections of an idle server, and what it asks for in
// a second: commands and bytes on the wire, and commands by Redis.
func (b *bench) asksWhenIdle(ctx context.Context, result sample) error {
	outer, err := outerCommands(ctx, b.store.admin)
	if err != nil {
		return err
	}
	before, err := b.outerCalls(ctx, outer)
	if err != nil {
		return err
	}
	m, err := startMeter(ctx, b.store)
	if err != nil {
		return err
	}
	if err := sleep(ctx, b.sizes.idleSpan); err != nil {
		return err
	}
	wall := time.Since(m.at).Seconds()
	perSecond, err := m.stop(ctx, 1, time.Since(m.at)) // one job is one second here
	if err != nil {
		return err
	}
	after, err := b.outerCalls(ctx, outer)
	if err != nil {
		return err
	}
	conns, err := b.conns(ctx)
	if err != nil {
		return err
	}
	result[figConns] = float64(conns)
	result[figIdleCommands] = perSecond[figCommands] / wall
	result[figIdleCPU] = perSecond[figCPU] / wall
	result[figIdleBytes] = perSecond[figBytes] / wall
	result[figIdleCalls] = float64(after-before) / wall
	return nil
}

// lateOnTopics adds the lateness of jobs that are due when they are stored, at
// a steady rate on random topics.
func (b *bench) lateOnTopics(ctx context.Context, p peer, names []string, handle *atomic.Pointer[func(delivery)], result sample) error {
	t := newTally(b.sizes.topicLate)
	late := make([]time.Duration, t.n)
	handle.Store(new(func(d delivery) {
		if i := payloadIndex(d.payload); i >= 0 && i < t.n {
			late[i] = d.late
		}
		t.handle(d)
	}))
	interval := b.sizes.lateSpan / time.Duration(t.n)
	start, payload := time.Now(), newPayload()
	for i := range t.n {
		if err := until(ctx, start.Add(time.Duration(i)*interval)); err != nil {
			return err
		}
		fillPayload(payload, i, time.Now())
		if err := p.enqueue(ctx, names[rand.IntN(len(names))], job{payload: slices.Clone(payload)}); err != nil {
			return err
		}
	}
	if _, err := t.wait(ctx); err != nil {
		return err
	}
	slices.Sort(late)
	result[figP50] = milliseconds(percentile(late, 50))
	result[figP99] = milliseconds(percentile(late, 99))
	return t.check()
}

// liveHeap is the size of what the program holds, in bytes.
func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // pools are emptied by the second
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	return int64(mem.HeapAlloc)
}

// conns is the number of connections of servers, by Redis's CLIENT LIST.
func (b *bench) conns(ctx context.Context) (int, error) {
	list, err := b.store.admin.ClientList(ctx).Result()
	if err != nil {
		return 0, fmt.Errorf("list connections: %w", err)
	}
	return strings.Count(list, " name="+serverName+" "), nil
}

// watchConns counts the connections of servers again and again. The function
// that it returns ends that, and returns the largest count.
func (b *bench) watchConns(ctx context.Context) (end func() (int, error)) {
	const pause = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(ctx)
	var most int
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			n, listErr := b.conns(context.WithoutCancel(ctx))
			if err = listErr; err != nil {
				return
			}
			most = max(most, n)
			if sleep(ctx, pause) != nil {
				return
			}
		}
	}()
	return func() (int, error) {
		cancel()
		<-done
		return most, err
	}
}

// outerCommands are the commands that a script cannot execute, or cannot
// execute as a client does: EVALSHA, SUBSCRIBE, blocking pops and the like.
// INFO commandstats counts commands inside scripts too, so only these show
// what was sent.
func outerCommands(ctx context.Context, admin *redis.Client) (map[string]bool, error) {
	all, err := admin.Command(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("list commands: %w", err)
	}
	outer := map[string]bool{}
	for name, info := range all {
		if name != "info" && (slices.Contains(info.Flags, "noscript") || slices.Contains(info.Flags, "blocking")) {
			outer[name] = true
		}
	}
	return outer, nil
}

// outerCalls is how often those commands have been called.
func (b *bench) outerCalls(ctx context.Context, outer map[string]bool) (int64, error) {
	text, err := b.store.admin.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, fmt.Errorf("read command statistics: %w", err)
	}
	return sumCalls(text, outer)
}

// sumCalls adds up the calls of commands in the text of INFO commandstats.
func sumCalls(text string, commands map[string]bool) (sum int64, err error) {
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		name, stats, ok := strings.Cut(strings.TrimPrefix(lines.Text(), "cmdstat_"), ":calls=")
		name, _, _ = strings.Cut(name, "|") // of a subcommand
		if !ok || !commands[name] {
			continue
		}
		calls, _, _ := strings.Cut(stats, ",")
		n, err := strconv.ParseInt(calls, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read calls of %s: %w", name, err)
		}
		sum += n
	}
	return sum, nil
}

// wakes measures how many takes one job causes while ten idle servers wait for
// it. The takes of idle servers without a job are counted too.
func wakes(ctx context.Context, b *bench, p peer) (_ sample, err error) {
	const servers = 10
	const calm = 300 * time.Millisecond // from one job to the next
	started := make(chan struct{}, 1)
	var takes atomic.Int64
	stop, err := p.work(ctx, workload{
		servers: servers, plain: true, takes: &takes,
		topics: []topicWork{{topic, topicSlots, func(delivery) { started <- struct{}{} }}},
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := sleep(ctx, b.sizes.idleSettle); err != nil {
		return nil, err
	}
	takes.Store(0)
	payload := newPayload()
	for range b.sizes.wakes {
		fillPayload(payload, 0, time.Now())
		if err := p.enqueue(ctx, topic, job{payload: payload}); err != nil {
			return nil, err
		}
		select {
		case <-started:
		case <-time.After(patience):
			return nil, fmt.Errorf("a job did not start in %s", patience)
		}
		if err := sleep(ctx, calm); err != nil {
			return nil, err
		}
	}
	return sample{figTakes: float64(takes.Load()) / float64(b.sizes.wakes)}, nil
}

// topicRows are the rows with many topics or many idle servers.
func topicRows() []row {
	var all []row
	for _, c := range []struct{ topics, conns float64 }{{1, 6}, {20, 10}, {200, 16}, {1000, 24}} {
		all = append(all, row{
			id:    fmt.Sprintf("topics/%.0f", c.topics),
			title: fmt.Sprintf("a server, topics: %.0f", c.topics),
			sides: both(manyTopics(int(c.topics))),
			targets: []target{
				atMost(figConns, c.conns), atMost(figConnsLoaded, 2*c.conns), atMost(figHeap, 20_000),
				atMost(figIdleCommands, 10), atMost(figP99, 5),
			},
			rounds: 1, // long, and most of it is counted, not timed
		})
	}
	return append(all, row{
		id: "topics/wake", title: "one job, 10 idle servers",
		sides:   []side{delayqProduct.on(wakes)},
		targets: []target{atMost(figTakes, 1)},
		rounds:  1,
	})
}
