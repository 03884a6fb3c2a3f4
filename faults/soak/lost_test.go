package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/faults/check"
	"github.com/delayq/delayq/faults/rig"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
)

// TestSoakFindsWhatIsLost is the negative control of jobs, parcels and callers. From the middle on,
// twenty jobs that wait and twenty parcels are deleted behind the queue's back. Some of those who
// wait for a job are forgotten, and others are told another end. On a busy machine few callers are
// there at the right time, so one of five runs must find all.
func TestSoakFindsWhatIsLost(t *testing.T) {
	redistest.Need(t)
	var missed error
	for seed := range uint64(5) {
		if missed = loseAndLook(t, 2+seed); missed == nil {
			return
		}
	}
	t.Error(missed)
}

// loseAndLook is one run. It returns what was not found.
func loseAndLook(t *testing.T, seed uint64) error {
	s := &Soak{Seed: seed, Dir: t.TempDir(), For: 6 * time.Second, Log: io.Discard}
	var deleted map[string]bool
	var notMisled error
	parcels := 0
	s.Sabotage = func(ctx context.Context, rdb *redis.Client) (err error) {
		misled, lost := make(chan error), make(chan int)
		go func() { misled <- misleadCallers(ctx, rdb) }()
		go func() { lost <- loseParcels(ctx, rdb) }()
		deleted, err = loseJobs(ctx, s, rdb)
		parcels, notMisled = <-lost, <-misled
		return err
	}
	report, err := s.Run(t.Context())
	require.NoError(t, err)
	require.Len(t, deleted, 20)
	for _, v := range report.Violations {
		if v.Rule == "I1" || v.Rule == "I8" || v.Rule == "I12" {
			delete(deleted, v.ID)
		}
	}
	require.Empty(t, deleted, "not found: %v", report.Violations)
	if notMisled != nil {
		return notMisled
	}
	if parcels == 0 || report.Count("I30") == 0 {
		return fmt.Errorf("%d parcels were deleted: %v", parcels, report.Violations)
	}
	for _, what := range []string{"nothing of its end", "was left alone"} {
		if !slices.ContainsFunc(report.Violations, func(v check.Violation) bool {
			return v.Rule == "I29" && strings.Contains(v.Text, what)
		}) {
			return fmt.Errorf("%q is not in %v", what, report.Violations)
		}
	}
	return nil
}

// loseParcels deletes parcels of jobs of all topics. Some of them are being delivered.
func loseParcels(ctx context.Context, rdb *redis.Client) (lost int) {
	for round := 0; round < 10_000 && lost < 20 && wait(ctx, 0); round++ {
		var popped []*redis.ZSliceCmd
		_, _ = rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error { // each has its error
			for _, topic := range all {
				popped = append(popped, pipe.ZPopMin(ctx, prefix+":{"+topic+"}:all:parcels"))
			}
			return nil
		})
		for _, one := range popped {
			lost += len(one.Val())
		}
	}
	return lost
}

// loseJobs stores jobs and deletes them again.
func loseJobs(ctx context.Context, s *Soak, rdb *redis.Client) (deleted map[string]bool, err error) {
	deleted = map[string]bool{}
	for i := 0; i < 1000 && len(deleted) < 20; i++ {
		task := &rig.Task{Topic: "a", ID: fmt.Sprint("lost-", i), Steps: []string{"ok"}, Retries: -1, Delay: 20 * time.Second}
		if err = s.put(ctx, []*rig.Task{task}); err == nil {
			var n int64
			if n, err = rdb.HDel(ctx, prefix+":{a}:pool", task.ID).Result(); n == 1 {
				deleted[task.ID] = true
			}
		}
		if err != nil {
			wait(ctx, 10*time.Millisecond) // Redis is away at the moment
		}
	}
	return deleted, err
}

// misleadCallers makes Redis forget two of those who wait for jobs that run, and tells two others
// that their jobs are cancelled. One of each is enough when the time is over.
func misleadCallers(ctx context.Context, rdb *redis.Client) error {
	forgotten, misled := 0, 0
	for round := 0; forgotten < 2 || misled < 2; round++ {
		if !wait(ctx, time.Millisecond) || round > 10_000 {
			if forgotten > 0 && misled > 0 {
				break
			}
			return fmt.Errorf("%d were forgotten and %d misled", forgotten, misled)
		}
		topic := topics[round%len(topics)]
		root := prefix + ":{" + topic + "}:"
		found, _, _ := rdb.HScan(ctx, root+"all:notes", 0, "wcalled-*", 1000).Result() // none if Redis is away at the moment
		for i := 0; i+1 < len(found); i += 2 {
			id := found[i][1:]
			_, waiter, _ := strings.Cut(found[i+1], ":")
			switch runs := rdb.ZScore(ctx, root+"leases", id).Err() == nil; {
			case !runs || len(waiter) < 8+13:
			case forgotten <= misled:
				n, _ := rdb.HDel(ctx, root+"all:notes", found[i]).Result() // nobody is forgotten
				forgotten += int(n)
			case rdb.HSet(ctx, root+"all:notes", "e"+waiter[:8], fmt.Sprintf("c %d ", time.Now().UnixMilli())).Err() == nil:
				look := record.Message{Verb: "look", Topic: topic, Job: id}.Encode()
				told, _ := rdb.Publish(ctx, prefix+":control:"+waiter[8+13:], look).Result() // nobody has heard it
				misled += int(told)
			}
		}
	}
	return nil
}
