package delayq

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
)

// Options that Again is not given are those of the ended job, but for its due time and an ExpireAt.
func encoded(t *testing.T, o *jobOptions, payload []byte) string {
	t.Helper()
	head, tail, err := record.Encode(record.Nonce{1, 2, 3, 4, 5, 6, 7, 8}, &o.Options, payload)
	require.NoError(t, err)
	return record.Join(head, 1_700_000_000_001, tail)
}

func TestAgainInheritsOptions(t *testing.T) {
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	all := []JobOption{
		Retry(3), Backoff(time.Minute, time.Hour), Timeout(time.Minute), Retention(time.Hour), ExpireIn(3 * time.Hour),
		Header("a", "1"), Header("b", "2"),
	}
	with := func(opts ...JobOption) []JobOption { return append(slices.Clone(all), opts...) }
	for name, c := range map[string]struct{ old, given, want []JobOption }{
		"none":              {nil, nil, nil},
		"all":               {all, nil, all},
		"others":            {all, []JobOption{Retry(9), Header("b", "3")}, with(Retry(9), Header("b", "3"))},
		"due in":            {[]JobOption{ProcessAt(at)}, []JobOption{ProcessIn(time.Hour)}, []JobOption{ProcessIn(time.Hour)}},
		"due at":            {[]JobOption{ProcessIn(time.Hour)}, []JobOption{ProcessAt(at)}, []JobOption{ProcessAt(at)}},
		"due at once":       {[]JobOption{ProcessIn(time.Hour)}, nil, nil},
		"expires at":        {[]JobOption{ExpireAt(at)}, nil, nil},
		"expires at anew":   {[]JobOption{ExpireAt(at)}, []JobOption{ExpireAt(at.Add(1))}, []JobOption{ExpireAt(at.Add(1))}},
		"expires otherwise": {all, []JobOption{ExpireAt(at.Add(1))}, with(ExpireAt(at.Add(1)))},
		"replaces":          {nil, []JobOption{Replace()}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			old, err := newJobOptions(c.old)
			require.NoError(t, err)
			rec, err := record.Decode(encoded(t, &old, []byte("old")))
			require.NoError(t, err)
			want, err := newJobOptions(c.want)
			require.NoError(t, err)
			r := &run{said: rec.Options}
			n, err := r.renew(&againError{[]byte("new"), c.given}, at)
			require.NoError(t, err)
			require.Equal(t, encoded(t, &want, []byte("new"))[record.HeadLen:], record.Join(n.head, 1_700_000_000_001, n.tail)[record.HeadLen:])
			require.Equal(t, len(encoded(t, &want, []byte("new"))), n.bytes())
			require.NotEqual(t, record.NonceOf(encoded(t, &old, nil)), record.NonceOf(n.head))
			other, err := r.renew(&againError{[]byte("new"), c.given}, at)
			require.NoError(t, err)
			require.NotEqual(t, n.head[:record.NonceLen], other.head[:record.NonceLen])
			require.Equal(t, rec.Options, r.said, "the present job's are as they were")
		})
	}
}

// The record of a schedule's job stays one.
func TestAgainKeepsTheSchedule(t *testing.T) {
	for _, scheduled := range []bool{true, false} {
		o := defaultJob
		n, err := (&run{said: o.Options, scheduled: scheduled}).renew(&againError{}, time.Now())
		require.NoError(t, err)
		rec, err := record.Decode(record.Join(n.head, 1_700_000_000_001, n.tail))
		require.NoError(t, err)
		require.Equal(t, scheduled, rec.Options.Scheduled)
	}
}

// Of a job that is kept and of its new record both count for what a call moves.
func TestGatherWeighsRenewals(t *testing.T) {
	n := &renewal{tail: string(make([]byte, 300<<10))}
	kept := row{run: &run{stored: 300 << 10, opts: record.Options{Retention: 1}}, verb: verbAgain, renewal: n}
	require.InDelta(t, 600<<10, kept.weight(), 100)
	kept.run.opts.Retention = 0
	require.InDelta(t, 300<<10, kept.weight(), 100)
}

// Of the jobs of one call the first that is due wakes the timers, wherever it is among them.
func TestAgainWakesTheTimersForTheFirst(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		sub := h.rdb.Subscribe(ctx, controlChannel(h.prefix()))
		defer func() { require.NoError(t, sub.Close()) }()
		_, err := sub.Receive(ctx)
		require.NoError(t, err)
		for _, whens := range [][]string{{"+300", "+3600000"}, {"+3600000", "+300"}} {
			h.put("+0", "1", "2")
			h.renewals = map[string]*renewal{"1": h.renewal(whens[0], 0), "2": h.renewal(whens[1], 0)}
			require.Equal(t, "oo", h.Again(0, h.Take(2, time.Minute)...))
			m, err := sub.ReceiveTimeout(ctx, 10*time.Second)
			require.NoError(t, err, "%v", whens)
			require.IsType(t, &redis.Message{}, m)
			require.Regexp(t, "^wake ", m.(*redis.Message).Payload)
			require.NoError(t, h.rdb.Del(ctx, h.keys.bucket, h.keys.pool).Err())
		}
	})
}
