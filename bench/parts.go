package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// figNodeMost and figNodeLeast are the CPU of the busiest node and of the
// least busy one, of all jobs.
const (
	figNodeMost  = "busiest_node_us_per_job"
	figNodeLeast = "least_busy_node_us_per_job"
)

// partConcurrency is that of the server of a topic with partitions.
const partConcurrency = 64

// A layout says on what jobs are spread: partitions of one topic, topics
// without partitions, or neither, one topic.
type layout struct{ parts, topics int }

func (l layout) String() string {
	switch {
	case l.parts > 0:
		return fmt.Sprintf("%d partitions", l.parts)
	case l.topics > 0:
		return fmt.Sprintf("%d plain topics", l.topics)
	}
	return "plain topic"
}

// names returns the topics. Several are in equal parts of the slots, as
// partitions are, so that each master has as many.
func (l layout) names() []string {
	list := []string{topic}
	if l.topics == 0 {
		return list
	}
	for i := range l.topics {
		name := topic
		for x := 0; part.Range(name, l.topics) != i; x++ {
			name = fmt.Sprintf("%s-%d-%d", topic, i, x)
		}
		list = append(list, name)
	}
	return list[1:]
}

// A spread is what has jobs, on a Redis Cluster of its own.
type spread struct {
	cluster *redistest.Cluster
	rdb     *redis.ClusterClient
	client  *delayq.Client
	topics  []string
}

// openSpread starts a Cluster of that many masters, and divides the topic
// there if the layout has partitions.
func openSpread(ctx context.Context, nodes int, l layout) (*spread, error) {
	cluster, err := redistest.StartClusterE("", nodes, 0)
	if err != nil {
		return nil, err
	}
	s := &spread{cluster: cluster, rdb: redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()}), topics: l.names()}
	if l.parts > 0 {
		err = delayq.NewClient(s.rdb, delayqPrefix).Partition(ctx, topic, l.parts)
		if err == nil {
			err = s.leaveHome(ctx, l.parts)
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.client = delayq.NewClient(s.rdb, delayqPrefix)
	return s, nil
}

// leaveHome takes the topic itself from the list of generations, as servers do
// half a minute after it has nothing left. Until then each call asks it first.
func (s *spread) leaveHome(ctx context.Context, parts int) error {
	k := script.NewKeys(string(delayqPrefix), topic)
	before := fmt.Sprintf("0:1 1:%d", parts)
	for number, want := range []string{before, fmt.Sprintf("1:%d", parts)} { // it is seen empty twice
		r, err := script.Caller{RDB: s.rdb}.Exec(ctx, script.PartRetire, k, k.Receipt("bench"), 0, number+1, before, 0, 1, 0,
			script.ControlChannel(string(delayqPrefix)), topic, "seal", "")
		if err == nil && r.Text(2) != want {
			err = fmt.Errorf("the topic has the partitions %q, not %q", r.Text(2), want)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *spread) close() error { return errors.Join(s.rdb.Close(), s.cluster.Close()) }

// cpu returns the processor time that each master has used.
func (s *spread) cpu(ctx context.Context) (list []time.Duration, err error) {
	for _, node := range s.cluster.Nodes {
		rdb := redis.NewClient(node.Options())
		text, err := rdb.Info(ctx, "cpu").Result()
		if err = errors.Join(err, rdb.Close()); err != nil {
			return nil, fmt.Errorf("read info: %w", err)
		}
		info, total := parseInfo(text), 0.0
		for _, field := range []string{"used_cpu_user", "used_cpu_sys"} {
			seconds, err := strconv.ParseFloat(info[field], 64)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", field, err)
			}
			total += seconds
		}
		list = append(list, time.Duration(total*float64(time.Second)))
	}
	return list, nil
}

// serve runs a server until stop is called.
func (s *spread) serve(ctx context.Context, handle func(delivery)) (stop func() error, err error) {
	server := delayq.NewServer(s.rdb, delayqPrefix, delayq.Logger(quiet()), delayq.Pool("all", partConcurrency))
	for _, name := range s.topics {
		workers := delayq.HandlerOption(delayq.Concurrency(partConcurrency))
		if len(s.topics) > 1 { // they share them, as partitions do
			workers = delayq.InPool("all")
		}
		err = server.HandlerFunc(name, func(_ context.Context, job *delayq.Job) error {
			handle(delivery{payload: job.Payload, late: job.Lateness()})
			return nil
		}, workers)
		if err != nil {
			return nil, err
		}
	}
	run, cancel := context.WithCancel(ctx)
	var failed error
	var wg sync.WaitGroup
	wg.Go(func() { failed = server.Run(run) })
	return sync.OnceValue(func() error {
		cancel()
		wg.Wait()
		return failed
	}), nil
}

// partLife measures the whole life of delayed jobs that are spread, and how
// late jobs start at rest. All jobs are stored, and are due at once.
func partLife(nodes int, l layout) func(context.Context, *bench) (sample, error) {
	return func(ctx context.Context, b *bench) (_ sample, err error) {
		s, err := openSpread(ctx, nodes, l)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, s.close()) }()
		result := sample{}
		if err := s.life(ctx, b.sizes.warm, sample{}); err != nil { // its figures say nothing
			return nil, err
		}
		if err := s.life(ctx, b.sizes.life, result); err != nil {
			return nil, err
		}
		return result, s.late(ctx, b, result)
	}
}

// life is one round of that.
func (s *spread) life(ctx context.Context, n int, result sample) error {
	t := newTally(n)
	jobs := make([]delayq.NewJob, n)
	due := time.Now().Add(lifeDelay).Truncate(time.Second).Add(time.Second)
	for i := range jobs {
		payload := newPayload()
		fillPayload(payload, i, due)
		jobs[i] = delayq.NewJob{Topic: s.topics[i%len(s.topics)], Payload: payload, Options: []delayq.JobOption{delayq.ProcessAt(due)}}
	}
	before, err := s.cpu(ctx)
	if err != nil {
		return err
	}
	if _, err := s.client.EnqueueBatch(ctx, jobs); err != nil {
		return err
	}
	stop, err := s.serve(ctx, t.handle)
	if err != nil {
		return err
	}
	last, err := t.wait(ctx)
	if err = errors.Join(err, stop()); err != nil {
		return err
	}
	after, err := s.cpu(ctx)
	if err != nil {
		return err
	}
	var each []float64
	for i := range after {
		each = append(each, float64((after[i]-before[i]).Nanoseconds())/1000/float64(n))
	}
	sum := 0.0
	for _, one := range each {
		sum += one
	}
	result[figCPU], result[figNodeMost], result[figNodeLeast] = sum, slices.Max(each), slices.Min(each)
	result[figRate] = float64(n) / last.Sub(due).Seconds()
	return t.check()
}

// late adds how late jobs at random times start.
func (s *spread) late(ctx context.Context, b *bench, result sample) error {
	t := newTally(b.sizes.lateJobs)
	late := make([]time.Duration, t.n)
	stop, err := s.serve(ctx, func(d delivery) {
		if i := payloadIndex(d.payload); i >= 0 && i < t.n {
			late[i] = d.late
		}
		t.handle(d)
	})
	if err != nil {
		return err
	}
	jobs := make([]delayq.NewJob, t.n)
	for i := range jobs {
		payload := newPayload()
		fillPayload(payload, i, time.Time{})
		in := b.sizes.idleSettle + rand.N(b.sizes.lateSpan)
		jobs[i] = delayq.NewJob{Topic: s.topics[i%len(s.topics)], Payload: payload, Options: []delayq.JobOption{delayq.ProcessIn(in)}}
	}
	_, err = s.client.EnqueueBatch(ctx, jobs)
	if err == nil {
		_, err = t.wait(ctx)
	}
	if err = errors.Join(err, stop(), t.check()); err != nil {
		return err
	}
	slices.Sort(late)
	result[figP50], result[figP99] = milliseconds(percentile(late, 50)), milliseconds(percentile(late, 99))
	return nil
}

// partRows are the rows of a topic with partitions. The masters share the
// machine, so the CPU of each is what tells how much they can do on their own.
// A master that has a third of the jobs wakes up as often for fewer of them at
// a time, whatever they belong to. So on three masters, partitions are compared
// with a plain topic on each of them.
func partRows() []row {
	on := func(nodes int, l layout) side { return side{label: l.String(), measure: partLife(nodes, l)} }
	return []row{
		{
			id: "parts/1", title: "a topic with partitions, one master",
			sides:   []side{on(1, layout{parts: 3}), on(1, layout{}), on(1, layout{parts: 1}), on(1, layout{parts: 12})},
			targets: []target{timesAtMost(figCPU, 1.08), atMost(figP99, 5)},
		},
		{
			id: "parts/3", title: "a topic with partitions, three masters",
			sides: []side{
				on(3, layout{parts: 12}), on(3, layout{topics: 3}), on(3, layout{}), on(3, layout{parts: 1}), on(3, layout{parts: 3}),
			},
			targets: []target{timesAtMost(figCPU, 1.08), atMost(figP99, 5)},
		},
	}
}
