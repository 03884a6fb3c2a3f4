package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/faults/check"
	"github.com/delayq/delayq/faults/rig"
	"github.com/delayq/delayq/internal/redistest"
)

func TestMain(m *testing.M) {
	rig.WorkerMain()
	os.Exit(m.Run())
}

// TestSoakShortly keeps the soak itself in working order. It is far too short to find much.
func TestSoakShortly(t *testing.T) {
	redistest.Need(t)
	s := &Soak{Seed: 1, Dir: t.TempDir(), For: 12 * time.Second, Log: io.Discard}
	report, err := s.Run(t.Context())
	require.NoError(t, err)
	for _, v := range report.Violations {
		t.Error(v)
	}
	t.Log(report)
	require.Greater(t, report.Finished, 100)
	require.Greater(t, report.Slots.Fired, int64(30))
	require.Greater(t, report.Slots.Spans, 30)
	require.NotZero(t, report.Slots.Checks)
}

// TestSoakFindsWhatIsLost is the negative control: in the middle, jobs that wait are deleted behind
// the queue's back. One may expire or be replaced later, and is no loss then; of many the most must
// be found.
func TestSoakFindsWhatIsLost(t *testing.T) {
	redistest.Need(t)
	deleted := map[string]bool{}
	s := &Soak{Seed: 2, Dir: t.TempDir(), For: 6 * time.Second, Log: io.Discard}
	s.Sabotage = func(ctx context.Context, rdb *redis.Client) error {
		for range 1000 {
			state, err := check.Read(ctx, rdb, prefix)
			if err != nil {
				continue // Redis is away at the moment
			}
			for id := range state.Topics["a"].Bucket {
				if !strings.Contains(id, "@") && rdb.HDel(ctx, prefix+":{a}:pool", id).Val() == 1 {
					deleted[id] = true
				}
			}
			if len(deleted) >= 10 {
				return nil
			}
		}
		return errors.New("found no jobs to delete")
	}
	report, err := s.Run(t.Context())
	require.NoError(t, err)
	found := map[string]bool{}
	for _, v := range report.Violations {
		if deleted[v.ID] && (v.Rule == "I1" || v.Rule == "I8" || v.Rule == "I12") {
			found[v.ID] = true
		}
	}
	require.Greater(t, 2*len(found), len(deleted), "of %d jobs that were deleted: %v", len(deleted), report.Violations)
}

// TestSoakFindsALostSlot is the negative control of schedules: in the middle, some are set to a
// later slot behind the queue's back.
func TestSoakFindsALostSlot(t *testing.T) {
	redistest.Need(t)
	s := &Soak{Seed: 3, Dir: t.TempDir(), For: 6 * time.Second, Log: io.Discard}
	s.Sabotage = func(ctx context.Context, rdb *redis.Client) error {
		moved := 0
		for range 1000 {
			state, err := check.Read(ctx, rdb, prefix)
			if err != nil {
				continue // Redis is away at the moment
			}
			for name, slot := range state.Topics["a"].Slots {
				if rdb.ZAddXX(ctx, prefix+":{a}:slots", redis.Z{Score: slot + 60_000, Member: name}).Err() == nil {
					moved++
				}
			}
			if moved > 0 {
				return nil
			}
		}
		return errors.New("found no schedule to move")
	}
	report, err := s.Run(t.Context())
	require.NoError(t, err)
	require.NotZero(t, report.Count("I19"), report)
}
