package tests

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

func TestBatchHasAnOutcomePerJob(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("taken")
		jobs := []delayq.NewJob{
			{Topic: "topic", ID: "new", Payload: []byte("1"), Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}},
			{Topic: "topic", ID: "taken"},
			{Topic: "bad{topic"},
			{Topic: "other", ID: "taken"},
			{Topic: "topic", ID: "new", Payload: []byte("2")},
			{Topic: "topic", ID: "taken", Payload: []byte("3"), Options: []delayq.JobOption{delayq.Replace()}},
			{Topic: "topic", ID: "late", Options: []delayq.JobOption{delayq.ProcessIn(-1), delayq.Retry(-5)}},
			{Topic: "topic", ID: strings.Repeat("i", 1025)},
			{Topic: "topic", Payload: make([]byte, 1<<20+1)},
			{Topic: "topic"},
			{Topic: "topic", ID: "nil option", Options: []delayq.JobOption{nil}},
		}
		results, err := f.Client.EnqueueBatch(t.Context(), jobs)
		require.Len(t, results, len(jobs))
		want := []error{
			nil, delayq.ErrDuplicate, delayq.ErrInvalid, nil, delayq.ErrDuplicate, nil, delayq.ErrInvalid, delayq.ErrInvalid,
			delayq.ErrInvalid, nil, delayq.ErrInvalid,
		}
		for i, r := range results {
			if want[i] == nil {
				require.NoError(t, r.Err, i)
				require.NotNil(t, r.Job, i)
				require.Equal(t, jobs[i].Topic, r.Job.Topic)
				require.Equal(t, string(jobs[i].Payload), string(r.Job.Payload))
				info, err := f.Client.Get(t.Context(), r.Job.Topic, r.Job.ID)
				require.NoError(t, err)
				require.Equal(t, r.Job.Nonce(), info.Nonce())
				continue
			}
			require.ErrorIs(t, r.Err, want[i], i)
			require.ErrorIs(t, err, want[i])
			require.Nil(t, r.Job, i)
		}
		require.ErrorContains(t, err, "7 of 11")
		require.Equal(t, "1", string(f.Get("new").Payload))
		require.Equal(t, "3", string(f.Get("taken").Payload))
		require.NotEmpty(t, results[9].Job.ID)
	})
}

func TestBatchOfNothing(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		results, err := f.Client.EnqueueBatch(t.Context(), nil)
		require.NoError(t, err)
		require.Empty(t, results)
		require.Empty(t, f.Dump())
	})
}

// The caller's slice of jobs is only read.
func TestBatchLeavesTheJobsAlone(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		jobs := []delayq.NewJob{{Topic: "topic"}, {Topic: "topic", ID: "x"}}
		results, err := f.Client.EnqueueBatch(t.Context(), jobs)
		require.NoError(t, err)
		require.Equal(t, []delayq.NewJob{{Topic: "topic"}, {Topic: "topic", ID: "x"}}, jobs)
		require.NotEmpty(t, results[0].Job.ID)
	})
}

// countdown ends a context when a number of chunks have been stored.
type countdown struct {
	left atomic.Int64
	end  context.CancelFunc
}

func (c *countdown) Script(e delayq.ScriptEvent) {
	if e.Name == "enqueue" && c.left.Add(-1) == 0 {
		c.end()
	}
}

func TestBatchWhoseContextEnds(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx, cancel := context.WithCancel(t.Context())
		hook := &countdown{end: cancel}
		hook.left.Store(2)
		client := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(hook))
		jobs := make([]delayq.NewJob, 2000)
		for i := range jobs {
			jobs[i] = delayq.NewJob{Topic: "topic", ID: strconv.Itoa(i)}
		}
		results, err := client.EnqueueBatch(ctx, jobs)
		require.ErrorIs(t, err, context.Canceled)
		info := f.Stats()
		require.EqualValues(t, 1000, info.Ready, "two chunks")
		for i, r := range results {
			if i < 1000 {
				require.NoError(t, r.Err)
				continue
			}
			require.Nil(t, r.Job)
			require.ErrorIs(t, r.Err, context.Canceled)
			require.NotErrorIs(t, r.Err, delayq.ErrUnknownOutcome)
		}
	})
}

// 100,000 jobs of mixed topics and options in one call, on a real Redis.
func TestBatchOfAHundredThousand(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	f := queuetest.NewFixture(t, redistest.Shared(t))
	ctx := t.Context()
	const n, topics = 100_000, 7
	at := time.UnixMilli(4_000_000_000_000)
	options := [][]delayq.JobOption{
		nil,
		{delayq.ProcessIn(time.Hour)},
		{delayq.ProcessAt(at), delayq.Retry(3), delayq.Backoff(time.Second, time.Minute)},
		{delayq.ProcessIn(-time.Second), delayq.Header("k", "v"), delayq.Timeout(time.Second)},
		{delayq.ProcessIn(time.Minute), delayq.ExpireIn(time.Hour), delayq.Retention(time.Hour)},
	}
	jobs := make([]delayq.NewJob, n)
	want := make([]error, n)
	stored := map[string]int64{}
	for i := range jobs {
		topic := fmt.Sprint("topic", i%topics)
		jobs[i] = delayq.NewJob{Topic: topic, ID: strconv.Itoa(i), Payload: fmt.Append(nil, "payload ", i), Options: options[i%len(options)]}
		switch {
		case i >= n/2 && i%997 == 0: // as the job before it of the same topic
			jobs[i].ID = strconv.Itoa(i - topics)
			want[i] = delayq.ErrDuplicate
		case i >= n/2 && i%499 == 0:
			jobs[i].ID = strconv.Itoa(i - topics)
			jobs[i].Options = append([]delayq.JobOption{delayq.Replace()}, jobs[i].Options...)
		case i%1009 == 0:
			jobs[i].Topic = ""
			want[i] = delayq.ErrInvalid
		default:
			stored[topic]++
		}
	}
	results, err := f.Client.EnqueueBatch(ctx, jobs)
	require.ErrorIs(t, err, delayq.ErrInvalid, "among the first few")
	require.Len(t, results, n)
	for i, r := range results {
		if want[i] != nil {
			if r.Job != nil || !errors.Is(r.Err, want[i]) {
				t.Fatalf("job %d: %v instead of %v", i, r.Err, want[i])
			}
			continue
		}
		if r.Err != nil || r.Job.Topic != jobs[i].Topic || r.Job.ID != jobs[i].ID || string(r.Job.Payload) != string(jobs[i].Payload) {
			t.Fatalf("job %d: %v, %+v", i, r.Err, r.Job)
		}
		if due := r.Job.Due.Sub(r.Job.EnqueuedAt); i%len(options) == 1 && due != time.Hour || i%len(options) == 2 && !r.Job.Due.Equal(at) {
			t.Fatalf("job %d is due in %v", i, due)
		}
	}
	for topic, count := range stored {
		info := queuetest.StatsOf(t, f.Inspector, topic)
		require.Equal(t, count, info.Scheduled+info.Ready, topic)
	}
	for i := n / 2; i < n; i += 4321 {
		info, err := f.Client.Get(ctx, fmt.Sprint("topic", i%topics), strconv.Itoa(i))
		require.NoError(t, err)
		require.Equal(t, i, atoiEnd(string(info.Payload)))
	}
	require.NoError(t, f.RDB.Del(ctx, delayqKeys(f)...).Err())
}

func atoiEnd(s string) int {
	n, _ := strconv.Atoi(s[strings.LastIndexByte(s, ' ')+1:])
	return n
}

// delayqKeys lists all keys of the fixture.
func delayqKeys(f *queuetest.Fixture) (keys []string) {
	census, err := redistest.Census(f.T.Context(), f.RDB, f.Prefix+":*")
	require.NoError(f.T, err)
	for key := range census {
		keys = append(keys, key)
	}
	return keys
}

// breaker is a hook of a go-redis client that breaks the n-th call of a script.
type breaker struct {
	in   int
	with func()
}

func (b *breaker) DialHook(next redis.DialHook) redis.DialHook { return next }
func (b *breaker) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (b *breaker) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "evalsha") {
			if b.in--; b.in == 0 {
				b.with()
			}
		}
		return next(ctx, cmd)
	}
}

// A hook of the user's go-redis client breaks the call in which a chunk is sent: the batch goes on,
// and says of which jobs it does not know more.
func TestBatchWithABrokenHook(t *testing.T) {
	for what, with := range map[string]func(){"panic": func() { panic("oh") }, "goexit": runtime.Goexit} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
				require.NoError(t, queuetest.LoadScripts(t.Context(), rdb))
				rdb.AddHook(&breaker{in: 2, with: with})
				jobs := make([]delayq.NewJob, 1700)
				for i := range jobs {
					jobs[i] = delayq.NewJob{Topic: "topic", ID: strconv.Itoa(i)}
				}
				client := delayq.NewClient(rdb)
				results, err := client.EnqueueBatch(t.Context(), jobs)
				require.ErrorIs(t, err, delayq.ErrUnknownOutcome)
				require.ErrorContains(t, err, "cut off: "+what+": ")
				for i, r := range results {
					if info, err := client.Get(t.Context(), "topic", jobs[i].ID); r.Err == nil {
						require.NoError(t, err)
						require.Equal(t, r.Job.Nonce(), info.Nonce())
					} else {
						require.ErrorIs(t, r.Err, delayq.ErrUnknownOutcome)
						require.ErrorIs(t, err, delayq.ErrNotFound)
					}
				}
				require.NoError(t, results[499].Err)
				require.Error(t, results[500].Err)
				require.Error(t, results[999].Err)
				require.NoError(t, results[1000].Err)
			})
		})
	}
}
