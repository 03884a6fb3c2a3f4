package faults_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/rig"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/redistest"
)

// A partStorm is what happens to the jobs of a topic while its partitions change.
type partStorm struct {
	mu     sync.Mutex
	jobs   map[string]*partJob
	wrong  []string
	faulty bool // a master is away, or has been until a moment ago
}

// A partJob is a job that a client was told to be stored.
type partJob struct {
	due       time.Time // at the earliest
	runs      int
	faulty    bool // a master went away while the job was there
	cancelled bool
	unsure    bool // it may be cancelled
}

func (s *partStorm) report(format string, args ...any) {
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
}

// setFaulty says that from now on, or no longer, anything can happen to a call.
func (s *partStorm) setFaulty(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faulty = is
	for _, job := range s.jobs {
		job.faulty = job.faulty || is
	}
}

func (s *partStorm) isFaulty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faulty
}

// count returns how many jobs there have been.
func (s *partStorm) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.jobs)
}

// tagOf returns a hash tag whose slot was that of one of three masters at first.
func tagOf(master int) string {
	for n := 0; ; n++ {
		if tag := fmt.Sprint("tag", n); part.Range(tag, 3) == master {
			return tag
		}
	}
}

func (s *partStorm) run(_ context.Context, job *delayq.Job) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if job.Topic != "t" {
		s.report("%s is of the topic %q", job.ID, job.Topic)
	}
	one := s.jobs[job.ID]
	switch {
	case one == nil: // its enqueue has no answer yet
		s.jobs[job.ID] = &partJob{runs: 1, faulty: s.faulty}
	case time.Now().Before(one.due):
		s.report("%s runs %v too early", job.ID, time.Until(one.due))
	case one.cancelled && !one.faulty:
		s.report("%s was cancelled, and runs", job.ID)
	default:
		if one.runs++; one.runs > 1 && !one.faulty && !s.faulty {
			s.report("%s runs a second time", job.ID)
		}
	}
	return nil
}

// put stores a job, and tries to store it again and to cancel it by another client, which may know
// other partitions.
func (s *partStorm) put(ctx context.Context, n int, first, second *delayq.Client) {
	id, delay := fmt.Sprint("job-", n), 1500*time.Millisecond+time.Duration(n%7)*300*time.Millisecond
	began := time.Now()
	opts := []delayq.JobOption{delayq.ProcessIn(delay), delayq.Key(fmt.Sprint("key", n%10))}
	_, err := first.Enqueue(ctx, "t", id, nil, opts...)
	s.mu.Lock()
	if err == nil {
		one := s.jobs[id]
		if one == nil {
			one = &partJob{}
			s.jobs[id] = one
		}
		one.due, one.faulty = began.Add(delay), one.faulty || s.faulty
	} else if !s.faulty && !errors.Is(err, delayq.ErrUnknownOutcome) && !errors.Is(err, delayq.ErrNotReplicated) && ctx.Err() == nil {
		s.report("enqueue %s: %v", id, err)
	}
	s.mu.Unlock()
	if err != nil {
		return
	}
	_, err = second.Enqueue(ctx, "t", id, nil, opts...)
	s.mu.Lock()
	one := s.jobs[id]
	if err == nil && !one.faulty && time.Since(began) < delay {
		s.report("%s is stored twice", id)
	}
	s.mu.Unlock()
	if n%5 > 0 {
		return
	}
	_, err = second.Dequeue(ctx, "t", id)
	s.mu.Lock()
	defer s.mu.Unlock()
	one.cancelled = err == nil
	one.unsure = errors.Is(err, delayq.ErrUnknownOutcome)
	if errors.Is(err, delayq.ErrNotFound) && !one.faulty && time.Since(began) < delay {
		s.report("%s is not found", id)
	}
}

// Servers run jobs of a topic over a Cluster of three masters and three replicas, while its
// partitions change all the time, a slot of a partition is moved, and a master dies. No job is lost
// or early, each is found, and only the fault makes one run twice.
func TestPartitionsChangeUnderFaults(t *testing.T) {
	b := newBench(t)
	cluster := redistest.StartCluster(t, 3, 1)
	access := rig.Redis{Cluster: cluster.Addrs()}
	newClient := func() (*delayq.Client, redis.UniversalClient) {
		rdb := access.Client()
		t.Cleanup(func() { _ = rdb.Close() })
		return delayq.NewClient(rdb, delayq.Prefix(b.prefix), delayq.WaitReplicas(1, 2*time.Second)), rdb
	}
	s := &partStorm{jobs: make(map[string]*partJob)}
	var first, second atomic.Pointer[delayq.Client]
	patient, rdb := newClient()
	first.Store(patient)
	other, others := newClient()
	second.Store(other)
	operator, _ := newClient()
	for range 2 {
		b.serve(rdb, func(server *delayq.Server) {
			require.NoError(t, server.HandlerFunc("t", s.run, delayq.Concurrency(16)))
		})
	}
	rounds := 12
	if testing.Short() {
		rounds = 8
	}
	stop := b.background(func(ctx context.Context) {
		var group sync.WaitGroup
		for worker := range 4 {
			group.Go(func() {
				for n := worker; ctx.Err() == nil; n += 4 {
					s.put(ctx, n, first.Load(), second.Load())
				}
			})
		}
		group.Wait()
	})
	resize := func(round int) {
		parts := 1 + (round*5)%7
		var err error
		eventually(t, "the topic is divided", patientFailover, func() bool {
			err = operator.Partition(t.Context(), "t", parts)
			switch {
			case err == nil, errors.Is(err, delayq.ErrInvalid): // too many generations have jobs yet
				return true
			case errors.Is(err, delayq.ErrUnknownOutcome), s.isFaulty():
				return true
			}
			return round <= rounds/2 // later, the client can still know a slot as that of the dead master
		})
		if err != nil && round <= rounds/2 && !errors.Is(err, delayq.ErrInvalid) && !errors.Is(err, delayq.ErrUnknownOutcome) {
			t.Errorf("round %d: %v", round, err)
		}
	}
	for round := range rounds {
		resize(round)
		switch round {
		case rounds / 4:
			places, err := rdb.HGet(t.Context(), b.prefix+":{t}:all:parts", "map").Result()
			require.NoError(t, err)
			m, err := part.ParseMap(places)
			require.NoError(t, err)
			name := m.Open().Names("t")[0]
			heal := b.fault("reshard")
			b.slotMove(cluster, rdb.(*redis.ClusterClient), name)()
			heal()
		case rounds / 2:
			heal := b.fault("failover")
			s.setFaulty(true)
			require.NoError(t, cluster.Nodes[1].Kill())
			eventually(t, "each slot has a master", patientFailover, func() bool {
				return rdb.Set(context.Background(), b.prefix+":probe:{"+tagOf(1)+"}", "", time.Second).Err() == nil
			})
			heal()
			first.Store(delayq.NewClient(rdb, delayq.Prefix(b.prefix))) // the new master has no replica
			second.Store(delayq.NewClient(others, delayq.Prefix(b.prefix)))
		case rounds/2 + 2:
			s.setFaulty(false)
		}
		more := s.count() + 60
		eventually(t, "more jobs are stored", patientFailover, func() bool { return s.count() >= more })
	}
	stop()
	eventually(t, "the topic is empty", patientFailover, func() bool {
		info, err := rig.StatsOf(context.Background(), delayq.NewInspector(rdb, delayq.Prefix(b.prefix)), "t")
		return err == nil && info.Scheduled+info.Ready+info.Running == 0
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	ran, cancelled := 0, 0
	for id, job := range s.jobs {
		switch {
		case job.runs > 0:
			ran++
		case job.cancelled:
			cancelled++
		case job.unsure:
		default:
			s.report("%s has not run", id)
		}
	}
	require.Empty(t, s.wrong[:min(len(s.wrong), 10)], "%d in all", len(s.wrong))
	require.Positive(t, cancelled)
	t.Logf("%d jobs have run, %d were cancelled", ran, cancelled)
}
