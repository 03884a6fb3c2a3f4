package serve

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// Numbers that nobody has confirmed for as long as a receipt is sure to be there are given up.
func TestHistoryIsGivenUp(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		require.NoError(t, rdb.ScriptLoad(t.Context(), script.Chronicle.Text.(string)).Err())
		mine := redis.NewClient(rdb.Options())
		defer func() { require.NoError(t, mine.Close()) }()
		s := serverOf(t, mine, script.DefaultPrefix)
		defer s.Close()
		topic, sent := s.Topics.Get("topic"), 0
		lost := errors.New("i/o timeout")
		s.Scripts.RDB = processing(func(ctx context.Context, cmd redis.Cmder) error {
			sent++
			if sent < 4 {
				require.NoError(t, s.Calls.Process(ctx, cmd), "Redis has it")
				cmd.SetErr(lost)
				return lost
			}
			return s.Calls.Process(ctx, cmd)
		})
		count := func(n int) {
			topic.Mu.Lock()
			defer topic.Mu.Unlock()
			for range n {
				topic.countLocked(&settle.Row{Run: &run.Run{}, Verb: settle.Ack})
			}
		}
		send := func() error {
			_, err := s.sendHistory(t.Context())
			return err
		}
		acked := func() (sum int64) {
			for number, field := range rdb.HGetAll(t.Context(), topic.Keys.Minutes).Val() {
				minute, _, _ := strings.Cut(field, " ")
				at, err := strconv.ParseInt(minute, 10, 64)
				require.NoError(t, err, number)
				record.DecodeSums(field, at, func(name string, n int64) {
					require.Equal(t, "acked", name)
					sum += n
				})
			}
			return sum
		}
		count(5)
		require.ErrorIs(t, send(), lost)
		count(2)
		time.Sleep(HistoryPatience)
		require.ErrorIs(t, send(), lost, "the receipt is still there")
		require.EqualValues(t, 5, acked())
		time.Sleep(2 * time.Minute)
		require.ErrorIs(t, send(), lost, "with the next numbers: those before are given up")
		require.EqualValues(t, 7, acked())
		time.Sleep(time.Minute)
		require.NoError(t, send())
		require.EqualValues(t, 7, acked())
		calls, err := s.sendHistory(t.Context())
		require.NoError(t, err)
		require.Zero(t, calls)
	})
}

// processing is a processor.
type processing func(ctx context.Context, cmd redis.Cmder) error

func (f processing) Process(ctx context.Context, cmd redis.Cmder) error { return f(ctx, cmd) }

// Counting a run allocates nothing.
func TestCountingAllocatesNothing(t *testing.T) {
	rdb := redistest.Unused(t)
	topic := serverOf(t, rdb, script.DefaultPrefix).Topics.Get("topic")
	r := settle.Row{Run: &run.Run{Start: time.Unix(1, 0), Lateness: time.Second}, Verb: settle.Ack, End: time.Unix(2, 0)}
	require.Zero(t, testing.AllocsPerRun(100, func() { topic.countLocked(&r) }))
	require.Positive(t, topic.History.sums[record.FirstRan+record.BucketOf(record.RunTimeBounds, time.Second)])
}

// A server keeps the numbers of a bounded number of topics that it no longer serves.
func TestLeftHistoriesAreBounded(t *testing.T) {
	t.Parallel()
	rdb := redistest.Unused(t)
	s := serverOf(t, rdb, script.DefaultPrefix)
	require.Empty(t, s.takeLeft())
	for range 2 * historyLeft {
		s.leave(s.Topics.Get("topic"))
	}
	require.Len(t, s.takeLeft(), historyLeft)
	require.Empty(t, s.takeLeft())
}

// BenchmarkCountRun is what a server does for each run that ends.
func BenchmarkCountRun(b *testing.B) {
	rdb := redistest.Unused(b)
	topic := serverOf(b, rdb, script.DefaultPrefix).Topics.Get("topic")
	r := settle.Row{Run: &run.Run{Start: time.Unix(1, 0), Lateness: 7 * time.Millisecond}, Verb: settle.Ack, End: time.Unix(1, 20_000_000)}
	b.ReportAllocs()
	for b.Loop() {
		topic.countLocked(&r)
	}
}
