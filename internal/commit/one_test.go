package commit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// unique returns the call that stores a job with a generated ID.
func (j job) unique(t testing.TB, topic, id string) *Op {
	o := j.store(t, topic, id)
	o.Fresh.Unique = true
	return o
}

// Only a job that a script for a lone job can store goes there, and only alone, when a reply has
// shown Redis's clock.
func TestPlainJobsHaveAScript(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what  string
		o     *Op
		other bool // another job is sent with it
		plan  bool
		want  *script.Script
	}{
		{"plain", job{}.unique(t, "topic", "x"), false, false, script.EnqueueNow},
		{"due before", job{when: "1"}.unique(t, "topic", "x"), false, false, script.EnqueueNow},
		{"later", job{when: "+5000"}.unique(t, "topic", "x"), false, false, script.EnqueueLater},
		{"at a later time", job{when: "9000000000000"}.unique(t, "topic", "x"), false, false, script.EnqueueLater},
		{"soon", job{when: "+500"}.unique(t, "topic", "x"), false, false, script.EnqueueLater},
		{"expires after it is due", job{opts: record.Options{ExpireAt: 1}}.unique(t, "topic", "x"), false, false, script.EnqueueNow},
		{"large", job{payload: make([]byte, 5000)}.unique(t, "topic", "x"), false, false, script.EnqueueNow},
		{"named", job{}.store(t, "topic", "x"), false, false, script.Enqueue},
		{"can expire before it is due", job{when: "+5000 +6000"}.unique(t, "topic", "x"), false, false, script.Enqueue},
		{"keyed", job{opts: record.Options{Key: "k"}}.unique(t, "topic", "x"), false, false, script.EnqueueKeyed},
		{"replaces", job{replace: ReplaceDead}.unique(t, "topic", "x"), false, false, script.Replace},
		{"with others", job{}.unique(t, "topic", "x"), true, false, script.Enqueue},
		{"of a plan", job{}.unique(t, "topic", "x"), false, true, script.Enqueue},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
				all := newCaller(rdb, redistest.Prefix(t))
				all.tellTime(t)
				list := []*Op{{Kind: c.o.Kind, Topic: c.o.Topic, ID: c.o.ID, Fresh: c.o.Fresh}}
				if c.other {
					list = append(list, job{}.unique(t, "topic", "y"))
				}
				if c.plan {
					_, err := all.SendPlan(t.Context(), Plan{Series: "s", Number: 1}, list, func(int) int { return 1 })
					require.NoError(t, err)
				} else {
					g := all.For("topic", Enqueue)
					defer g.Release()
					_, err := g.send(t.Context(), &g.series, list, false)
					require.NoError(t, err)
				}
				require.Equal(t, []string{fmt.Sprint(c.want.Name, " ", len(list))}, all.log.calls())
				require.Equal(t, strings.Repeat("n", len(list)), lettersOf(list))
				raw := rdb.HGet(t.Context(), script.NewKeys(all.Prefix, "topic").Pool, "x").Val()
				require.Equal(t, c.o.Fresh.at(list[0].EnqueuedAt), raw)
			})
		})
	}
}

// If enqueue_later finds the ID or the number of the call, enqueue decides what that means.
func TestPlainJobThatIsKnown(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx := t.Context()
		c := newCaller(rdb, redistest.Prefix(t))
		keys := script.NewKeys(c.Prefix, "topic")
		both := []string{"enqueue_later 1", "enqueue 1"}
		c.tellTime(t)

		first := job{when: "+60000"}.unique(t, "topic", "x")
		require.NoError(t, c.do(ctx, first))
		require.Equal(t, both[:1], c.log.calls())
		c.log.events = nil

		twin := job{when: "+60000"}.unique(t, "topic", "x")
		require.NoError(t, c.do(ctx, twin))
		require.Equal(t, both, c.log.calls())
		require.Equal(t, byte(script.LetterScheduled), twin.Letter)
		require.True(t, strings.HasPrefix(rdb.HGet(ctx, keys.Pool, "x").Val(), string(first.Fresh.Nonce[:])), "the first one is left")

		// The reply is lost, and then the job is cancelled: it does not come back.
		other := newCaller(rdb, c.Prefix)
		fault := &redistest.Fault{Lose: true, Done: true}
		lossy := redis.NewClient(redistest.Faulty(rdb, fault))
		redistest.InRoles(t, lossy)
		defer func() { require.NoError(t, lossy.Close()) }()
		c = newCaller(lossy, other.Prefix)
		c.tellTime(t)
		fault.Again(fmt.Sprint(script.EnqueueLater.Digest), func() {
			if err := other.do(ctx, &Op{Kind: Cancel, Topic: "topic", ID: "y"}); err != nil {
				t.Error(err)
			}
		})
		lost := job{when: "+60000"}.unique(t, "topic", "y")
		require.NoError(t, c.do(ctx, lost))
		require.True(t, fault.Happened())
		require.Equal(t, both, c.log.calls())
		require.Equal(t, byte(script.LetterStored), lost.Letter)
		require.False(t, rdb.HExists(ctx, keys.Pool, "y").Val(), "cancelled means cancelled")
		require.Equal(t, "2", rdb.HGet(ctx, keys.Stats, "enqueued").Val())
	})
}

// around is a hook of go-redis that is called in place of the calls of one script.
type around struct {
	which *script.Script
	call  func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error
}

func (around) DialHook(next redis.DialHook) redis.DialHook { return next }
func (around) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (a around) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if scripted(cmd) && cmd.Args()[1] == a.which.Digest {
			return a.call(ctx, cmd, next)
		}
		return next(ctx, cmd)
	}
}

// enqueue_later is carried out and its reply lost. go-redis sends it again, and it answers that it
// knows the call. If enqueue is not sent then, the job is stored, and no error may deny that.
func TestPlainJobThatIsKnownAndNotAskedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lose bool // the first reply
		call func(ctx context.Context, cancel func(), rdb *redis.Client, send func(context.Context) error) error
		want error
	}{
		"not sent": {true, func(context.Context, func(), *redis.Client, func(context.Context) error) error {
			return errAdd
		}, errAdd},
		"cancelled": {true, func(ctx context.Context, cancel func(), _ *redis.Client, send func(context.Context) error) error {
			cancel()
			return send(ctx)
		}, context.Canceled},
		"closed": {true, func(ctx context.Context, _ func(), rdb *redis.Client, send func(context.Context) error) error {
			return errors.Join(rdb.Close(), send(ctx))
		}, redis.ErrClosed},
		"known by its ID": {false, func(context.Context, func(), *redis.Client, func(context.Context) error) error {
			return errAdd
		}, errAdd},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
				ownClient(t)
				loadScripts(t, rdb)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				all := newCaller(rdb, redistest.Prefix(t))
				fault := &redistest.Fault{What: fmt.Sprint(script.EnqueueLater.Digest), Lose: true}
				if !c.lose { // another job has the ID
					fault.What = "nothing"
					require.NoError(t, all.do(ctx, job{}.store(t, "topic", "x")))
				}
				own := redis.NewClient(redistest.Faulty(rdb, fault))
				defer func() { _ = own.Close() }() // it may be closed already
				own.AddHook(around{script.Enqueue, func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
					return c.call(ctx, cancel, own, func(ctx context.Context) error { return next(ctx, cmd) })
				}})
				o := job{when: "+60000"}.unique(t, "topic", "x")
				caller := newCaller(own, all.Prefix)
				caller.tellTime(t)
				err := caller.do(ctx, o)
				require.ErrorIs(t, err, c.want)
				require.Equal(t, c.lose, fault.Happened())
				require.Equal(t, c.lose, isUnknown(err), err)
				raw := rdb.HGet(t.Context(), script.NewKeys(all.Prefix, "topic").Pool, "x").Val()
				require.Equal(t, c.lose, strings.HasPrefix(raw, string(o.Fresh.Nonce[:])), "our job is stored")
			})
		})
	}
}

// A client that is closed before a reply arrives does not know what Redis has done.
func TestClosedDuringACall(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		ownClient(t)
		loadScripts(t, rdb)
		fault := &redistest.Fault{What: fmt.Sprint(script.EnqueueNow.Digest), Lose: true}
		own := redis.NewClient(redistest.Faulty(rdb, fault))
		fault.After = func() { _ = own.Close() } // Close says that a connection in use is closed
		c := newCaller(own, redistest.Prefix(t))
		c.tellTime(t)
		err := c.do(t.Context(), job{}.unique(t, "topic", "x"))
		require.ErrorIs(t, err, redis.ErrClosed)
		require.True(t, isUnknown(err), err)
		require.True(t, rdb.HExists(t.Context(), script.NewKeys(c.Prefix, "topic").Pool, "x").Val())

		err = c.do(t.Context(), job{}.unique(t, "topic", "y"))
		require.ErrorIs(t, err, redis.ErrClosed)
		require.False(t, isUnknown(err), err)
	})
}

// A copy of a call that arrives after later calls of its series does nothing. Neither does a call
// whose guess is wrong, or whose ID has a record, and it leaves the receipt as it was.
func TestPlainJobThatIsRefused(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		keys, series := script.NewKeys(redistest.Prefix(t), "topic"), script.NewSeries()
		receipt := keys.Receipt(series.ID)
		stored, sent := 0, map[string]int64{} // number and ID → time
		for _, c := range []struct {
			number, id string
			ahead      int64 // of Redis's clock
			want       string
		}{
			{"1000000009", "a", 0, "ok"}, {"1000000010", "b", 0, "ok"}, {"1000000009", "c", 0, "known"}, {"1000000010", "b", 0, "known"},
			{"1000000011", "e", -5000, "known"}, {"1000000011", "f", 5000, "known"}, {"1000000011", "a", 0, "known"},
			{"1000000011", "g", 0, "ok"}, {"1000000101", "h", 0, "ok"}, {"1000000099", "i", 0, "known"}, {"1000000102", "j", 0, "ok"},
		} {
			o := job{when: "+60000"}.unique(t, "topic", c.id)
			before := redistest.Dump(t, rdb, keys.Prefix())
			told := rdb.Get(t.Context(), receipt).Val()
			at := cmp.Or(sent[c.number+c.id], rdb.Time(t.Context()).Val().UnixMilli()+c.ahead)
			sent[c.number+c.id] = at // a call that is sent again has the same words
			r, err := script.Caller{RDB: rdb}.Exec(t.Context(), script.EnqueueLater, keys, receipt, 1,
				c.number, c.id, o.Fresh.at(at), at, at+60_000)
			require.NoError(t, err)
			require.Equal(t, c.want, r.Status(), c.id)
			require.WithinDuration(t, time.Now(), time.UnixMilli(r.Now()), time.Hour)
			if c.want != "ok" {
				require.Equal(t, before, redistest.Dump(t, rdb, keys.Prefix()))
				require.Equal(t, told, rdb.Get(t.Context(), receipt).Val())
				continue
			}
			stored++
			require.Equal(t, o.Fresh.at(at), rdb.HGet(t.Context(), keys.Pool, c.id).Val())
			require.EqualValues(t, at+60_000, rdb.ZScore(t.Context(), keys.Bucket, c.id).Val())
			require.Equal(t, fmt.Sprint(stored), rdb.HGet(t.Context(), keys.Stats, "enqueued").Val())
		}
	})
}

// A guess that is wrong costs a second call, and the series goes on. Then the clock is not guessed
// until replies agree again.
func TestPlainJobWithAWrongGuess(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, r *embedded.Redis, rdb *redis.Client) {
		c := newCaller(rdb, "delayq")
		c.tellTime(t)
		for i, set := range []time.Duration{0, time.Hour, time.Hour} {
			r.SetTime(time.Now().Add(set))
			o := job{when: "+60000"}.unique(t, "topic", fmt.Sprint(i))
			require.NoError(t, c.do(t.Context(), o))
			require.Equal(t, byte(script.LetterStored), o.Letter)
			require.Equal(t, time.Now().Add(set).UnixMilli(), o.Now)
		}
		require.Equal(t, []string{"enqueue_later 1", "enqueue_later 1", "enqueue 1", "enqueue 1"}, c.log.calls())
	})
}
