package commit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// A drifting Redis has a clock that somebody sets, and a way that takes time.
type drifting struct {
	r      *embedded.Redis
	rnd    *rand.Rand
	slow   time.Duration // the most that one direction takes
	offset time.Duration // Redis's clock is ahead of the local one
	ran    int64         // Redis's clock when the last script ran, Unix ms
}

func (d *drifting) now() time.Time { return time.Now().Add(d.offset) }

func (d *drifting) travel() { time.Sleep(time.Duration(d.rnd.Int64N(int64(d.slow) + 1))) }

func (d *drifting) DialHook(next redis.DialHook) redis.DialHook { return next }
func (d *drifting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (d *drifting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !scripted(cmd) {
			return next(ctx, cmd)
		}
		d.travel()
		d.r.SetTime(d.now())
		d.ran = d.now().UnixMilli()
		err := next(ctx, cmd)
		d.travel()
		return err
	}
}

// Whatever the clocks and the way to Redis do: the time in a record is close to Redis's, the job is
// where its record says, and no job is due before its delay has passed since the call, unless
// somebody sets Redis's clock ahead in the meantime.
func TestGuessedTimesOfEnqueueing(t *testing.T) {
	guessTimes(t, false)
}

func TestGuessedTimesWhileRedisIsSet(t *testing.T) {
	guessTimes(t, true)
}

func guessTimes(t *testing.T, steps bool) {
	redistest.Bubble(t, func(t *testing.T, r *embedded.Redis, rdb *redis.Client) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rnd := rand.New(rand.NewPCG(seed, 0))
		d := &drifting{r: r, rnd: rnd}
		d.r.SetTime(d.now())
		rdb.AddHook(d)
		c, keys := newCaller(rdb, "delayq"), script.NewKeys("delayq", "topic")
		ctx := t.Context()
		guessed, inserted := 0, 0
		for i := range redistest.Size(10_000) {
			switch rnd.IntN(12) {
			case 0:
				if steps {
					d.offset += time.Duration(rnd.Int64N(int64(4*time.Second))) - 2*time.Second
				}
			case 1:
				if steps {
					d.offset += time.Duration(rnd.Int64N(int64(time.Hour))) - time.Hour/2
				}
			case 2:
				time.Sleep(time.Duration(rnd.Int64N(int64(2 * guessFor))))
			case 5, 6:
				time.Sleep(guessFrom / 2)
			case 3:
				d.slow = time.Duration(rnd.Int64N(int64(10 * time.Millisecond)))
			case 4:
				d.slow = time.Duration(rnd.Int64N(int64(2 * time.Second)))
			}
			o := guessedJob(t, rnd, d.now(), fmt.Sprint(i))
			called := d.now().UnixMilli()
			require.NoError(t, c.do(ctx, o))
			if o.Letter != script.LetterStored {
				require.EqualValues(t, script.LetterExpired, o.Letter)
				require.False(t, rdb.HExists(ctx, keys.Pool, o.ID).Val())
				continue
			}
			raw := rdb.HGet(ctx, keys.Pool, o.ID).Val()
			require.Equal(t, o.Fresh.at(o.EnqueuedAt), raw, "but for its time, the record is as it was sent")
			rec, err := record.Decode(raw)
			require.NoError(t, err)
			if rec.EnqueuedAt == d.ran {
				inserted++
			} else {
				guessed++
				require.LessOrEqual(t, rec.EnqueuedAt, d.ran+stampAhead)
				require.GreaterOrEqual(t, rec.EnqueuedAt, d.ran-stampBehind)
			}
			due := rec.Due()
			if score, err := rdb.ZScore(ctx, keys.Bucket, o.ID).Result(); err == nil {
				require.EqualValues(t, due, score)
				require.Greater(t, due, d.ran)
			} else {
				require.LessOrEqual(t, due, d.ran, "it is ready")
			}
			if o.Fresh.Opts.Key != "" {
				place := rdb.HGet(ctx, keys.Keyed, o.ID).Val()
				at, err := strconv.ParseInt(place[1+len(o.Fresh.Opts.Key):][:11], 16, 64)
				require.NoError(t, err)
				require.Equal(t, due, at, "its place in the lane")
			}
			if o.Fresh.delayed() {
				early := int64(0)
				if steps {
					early = stampBehind
				}
				require.GreaterOrEqual(t, due, called+o.Fresh.Opts.DueIn-early, "before its delay has passed")
			}
			require.NoError(t, rdb.Del(ctx, keys.Pool, keys.Bucket, keys.Ready, keys.Keyed, keys.Lane, keys.Turn).Err())
		}
		require.NotZero(t, guessed)
		require.NotZero(t, inserted)
	})
}

// guessedJob returns the call that stores some job.
func guessedJob(t *testing.T, rnd *rand.Rand, now time.Time, id string) *Op {
	when := "+0"
	switch rnd.IntN(4) {
	case 0:
		when = fmt.Sprint("+", rnd.IntN(3000))
	case 1:
		when = fmt.Sprint("+", rnd.IntN(3_600_000))
	case 2:
		when = fmt.Sprint(now.UnixMilli() + int64(rnd.IntN(20_000)-10_000))
	}
	if rnd.IntN(4) == 0 {
		when += fmt.Sprint(" +", 1+rnd.IntN(5000))
	}
	j := job{payload: make([]byte, rnd.IntN(2*wholeBytes)), when: when}
	if rnd.IntN(4) == 0 {
		j.opts.Key = "key"
	}
	if rnd.IntN(4) == 0 {
		j.replace = ReplaceAny
		j.when = string(ReplaceAny) + when
	}
	o := j.store(t, "topic", id)
	o.Fresh.Unique = rnd.IntN(2) == 0
	return o
}

// A large record is copied once: it is sent whole as soon as a reply has shown Redis's clock. The
// rows of an outbox are not, because a plan that is sent again has the same words.
func TestLargeRecordsAreSentWhole(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		c := newCaller(rdb, "delayq")
		send := func(id, when string, size int) *Op {
			o := job{payload: make([]byte, size), when: when}.store(t, "topic", id)
			require.NoError(t, c.do(t.Context(), o))
			return o
		}
		require.Zero(t, send("first", "+0", 2*wholeBytes).Fresh.stamp, "there was no reply")
		require.Zero(t, send("second", "+0", 2*wholeBytes).Fresh.stamp, "the clock may stand still")
		time.Sleep(guessFrom)
		require.Zero(t, send("third", "+0", 2*wholeBytes).Fresh.stamp)
		for _, when := range []string{"+0", "+60000", "1"} {
			require.NotZero(t, send("large"+when, when, wholeBytes).Fresh.stamp)
			require.Zero(t, send("small"+when, when, wholeBytes/2).Fresh.stamp)
			keyed := job{payload: make([]byte, wholeBytes), when: when, opts: record.Options{Key: "k"}}.store(t, "topic", "keyed"+when)
			require.NoError(t, c.do(t.Context(), keyed))
			require.Zero(t, keyed.Fresh.stamp, "jobs of a key keep the order in which they came")
		}
		other := job{payload: make([]byte, wholeBytes)}.store(t, "other topic", "x")
		require.NoError(t, c.do(t.Context(), other))
		require.NotZero(t, other.Fresh.stamp, "all topics are in one Redis")
		time.Sleep(guessFor + 1)
		require.Zero(t, send("last", "+0", 2*wholeBytes).Fresh.stamp, "the last reply was too long ago")

		row := job{payload: make([]byte, 2*wholeBytes)}.store(t, "topic", "row")
		_, err := c.SendPlan(t.Context(), Plan{Series: "s", Number: 1}, []*Op{row}, func(int) int { return 1 })
		require.NoError(t, err)
		require.Zero(t, row.Fresh.stamp)
	})
}

// The topics of a Cluster are on several nodes, and each has a clock.
func TestClocksOfACluster(t *testing.T) {
	t.Parallel()
	many := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer func() { require.NoError(t, many.Close()) }()
	c := newCaller(many, "delayq")
	require.NotSame(t, c.For("one", Enqueue).clock, c.For("two", Enqueue).clock)
	one := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { require.NoError(t, one.Close()) }()
	c = newCaller(one, "delayq")
	require.Same(t, c.For("one", Enqueue).clock, c.For("two", Enqueue).clock)
}

// A job that was stored, and whose reply was lost, is the caller's own when it is sent again, also
// if its receipt is gone.
func TestWholeRecordIsKnownAgain(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		c := newCaller(rdb, redistest.Prefix(t))
		c.tellTime(t)
		own := job{payload: make([]byte, 2*wholeBytes), when: "+60000"}.store(t, "topic", "x")
		require.NoError(t, c.do(t.Context(), own))
		before := rdb.HGet(t.Context(), script.NewKeys(c.Prefix, "topic").Pool, "x").Val()
		again := &Op{Kind: Enqueue, Topic: "topic", ID: "x", Fresh: own.Fresh}
		require.NoError(t, c.do(t.Context(), again))
		require.EqualValues(t, script.LetterStored, again.Letter)
		require.Equal(t, before, rdb.HGet(t.Context(), script.NewKeys(c.Prefix, "topic").Pool, "x").Val())
		twin := job{payload: make([]byte, 2*wholeBytes), when: "+60000"}.store(t, "topic", "x")
		require.NoError(t, c.do(t.Context(), twin))
		require.EqualValues(t, script.LetterScheduled, twin.Letter)
	})
}

// Hooks of a go-redis client that print commands, as that of redisotel does, print neither payloads
// nor all their bytes as numbers.
func TestPrintedCommandsHaveNoRecords(t *testing.T) {
	t.Parallel()
	draft, err := record.NewDraft(record.NewNonce(), &record.Options{}, make([]byte, 100_000))
	require.NoError(t, err)
	cmd := redis.NewCmd(t.Context(), (*wholeWord)(&draft), (*headWord)(&draft), (*tailWord)(&draft))
	require.Equal(t, "record head tail", cmd.String())
}
