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
	"github.com/delayq/delayq/internal/redistest"
)

// figNodeMost and figNodeLeast are the CPU of the busiest node and of the
// least busy one, of all jobs.
const (
	figNodeMost  = "busiest_node_us_per_job"
	figNodeLeast = "least_busy_node_us_per_job"
)

// partConcurrency is that of the server of a topic with partitions.
const partConcurrency = 64

// A spread is a topic on a Redis Cluster of its own.
type spread struct {
	cluster *redistest.Cluster
	rdb     *redis.ClusterClient
	client  *delayq.Client
}

// openSpread starts a Cluster of that many masters, and divides the topic
// there, unless parts is 0.
func openSpread(ctx context.Context, nodes, parts int) (*spread, error) {
	cluster, err := redistest.StartClusterE("", nodes, 0)
	if err != nil {
		return nil, err
	}
	s := &spread{cluster: cluster, rdb: redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()})}
	s.client = delayq.NewClient(s.rdb, delayqPrefix)
	if parts > 0 {
		err = s.client.Partition(ctx, topic, parts)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
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
	server := delayq.NewServer(s.rdb, delayqPrefix, delayq.Logger(quiet()))
	err = server.HandlerFunc(topic, func(_ context.Context, job *delayq.Job) error {
		handle(delivery{payload: job.Payload, late: job.Lateness()})
		return nil
	}, delayq.Concurrency(partConcurrency))
	if err != nil {
		return nil, err
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

// partLife measures the whole life of delayed jobs of a topic with partitions,
// and how late jobs start at rest. All jobs are stored, and are due at once.
func partLife(nodes, parts int) func(context.Context, *bench) (sample, error) {
	return func(ctx context.Context, b *bench) (_ sample, err error) {
		s, err := openSpread(ctx, nodes, parts)
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
		jobs[i] = delayq.NewJob{Topic: topic, Payload: payload, Options: []delayq.JobOption{delayq.ProcessAt(due)}}
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
		jobs[i] = delayq.NewJob{Topic: topic, Payload: payload, Options: []delayq.JobOption{delayq.ProcessIn(in)}}
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
func partRows() []row {
	on := func(nodes, parts int) side {
		label := "plain topic"
		if parts > 0 {
			label = fmt.Sprintf("%d partitions", parts)
		}
		return side{label: label, measure: partLife(nodes, parts)}
	}
	return []row{
		{
			id: "parts/1", title: "a topic with partitions, one master",
			sides:   []side{on(1, 3), on(1, 0), on(1, 1), on(1, 12)},
			targets: []target{timesAtMost(figCPU, 1.08)},
		},
		{
			id: "parts/3", title: "a topic with partitions, three masters",
			sides:   []side{on(3, 12), on(3, 0), on(3, 1), on(3, 3)},
			targets: []target{timesAtMost(figCPU, 1.08), atMost(figP99, 5)},
		},
	}
}
