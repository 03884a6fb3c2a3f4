package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// A silence is a hook that takes the answer from the calls of scripts, from one of them on, or does
// not even send them.
type silence struct {
	from   int
	calls  int
	unsent bool
}

func (s *silence) DialHook(next redis.DialHook) redis.DialHook { return next }
func (s *silence) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *silence) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "evalsha") {
			if s.calls++; s.calls >= s.from {
				if !s.unsent {
					_ = next(ctx, cmd) // its answer is lost
				}
				cmd.SetErr(errSilent)
				return errSilent
			}
		}
		return next(ctx, cmd)
	}
}

var errSilent = errors.New("i/o timeout")

// After a chunk without an answer no other is sent: the batch says which jobs may be stored and
// which are not.
func TestBatchOnASilentRedis(t *testing.T) {
	t.Parallel()
	for name, unsent := range map[string]bool{"answers are lost": false, "nothing is sent": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) { batchOnASilentRedis(t, rdb, unsent) })
		})
	}
}

func batchOnASilentRedis(t *testing.T, rdb redis.UniversalClient, unsent bool) {
	require.NoError(t, queuetest.LoadScripts(t.Context(), rdb))
	h := hand.New(t, rdb, redistest.Prefix(t), "a")
	o := *rdb.(*redis.Client).Options()
	own := redis.NewClient(&o)
	defer func() { require.NoError(t, own.Close()) }()
	silent := &silence{from: 3, unsent: unsent}
	own.AddHook(silent)
	redistest.InRoles(t, own)
	client := delayq.NewClient(own, delayq.Prefix(h.Prefix()))
	var jobs []delayq.NewJob
	for i := range 4 * commit.ChunkJobs {
		jobs = append(jobs, delayq.NewJob{Topic: "a", ID: fmt.Sprint(i)})
	}
	jobs = append(jobs, delayq.NewJob{Topic: "b", ID: "last"}, delayq.NewJob{Topic: "{"})
	results, err := client.EnqueueBatch(t.Context(), jobs)
	require.Equal(t, 3, silent.calls, "no call after the one without an answer")
	require.ErrorContains(t, err, fmt.Sprintf("%d of %d jobs failed", 2*commit.ChunkJobs+2, len(jobs)))
	for i, r := range results {
		switch {
		case i < 2*commit.ChunkJobs:
			require.NoError(t, r.Err)
		case i < 3*commit.ChunkJobs && !unsent:
			require.ErrorIs(t, r.Err, delayq.ErrUnknownOutcome)
			require.Equal(t, jobs[i].ID, r.Job.ID)
		case i < 3*commit.ChunkJobs:
			require.ErrorIs(t, r.Err, errSilent)
			require.NotErrorIs(t, r.Err, delayq.ErrUnknownOutcome)
			require.Nil(t, r.Job)
		case jobs[i].Topic == "{":
			require.ErrorIs(t, r.Err, delayq.ErrInvalid)
		default:
			require.NotErrorIs(t, r.Err, delayq.ErrUnknownOutcome)
			require.ErrorIs(t, r.Err, errSilent)
			require.ErrorContains(t, r.Err,
				fmt.Sprintf(`enqueue topic %q job %q: not sent, because Redis did not answer`, jobs[i].Topic, jobs[i].ID))
			require.Nil(t, r.Job)
		}
	}
	stored := 3 * commit.ChunkJobs
	if unsent {
		stored = 2 * commit.ChunkJobs
	}
	info := queuetest.StatsOf(t, delayq.NewInspector(rdb, delayq.Prefix(h.Prefix())), "a")
	require.EqualValues(t, stored, info.Ready)

	silent.from = 1 << 30
	_, err = client.EnqueueBatch(t.Context(), jobs[3*commit.ChunkJobs:4*commit.ChunkJobs+1])
	require.NoError(t, err, "what was not sent can be sent again")
}
