package commit

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// moved returns the call that reschedules a job.
func moved(id, when string, due record.Options) *Op {
	return &Op{Kind: Reschedule, Topic: "topic", ID: id, Move: &Move{When: when, Due: due}}
}

const hour = 3_600_000

// Calls of all kinds that come meanwhile go together, in one round trip and in one call of each
// script.
func TestCommitGathersAllKinds(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		var pipes pipelines
		c.rdb.AddHook(&pipes)
		loadScripts(t, c.rdb)
		gone := c.says(script.LetterGone)
		for i := range 2 {
			id := fmt.Sprint("job", i)
			c.call(Cancel, id, gone)
			c.call(Delete, "done"+id, gone)
			c.call(Revive, "dead"+id, gone)
			c.start(t.Context(), moved("moved"+id, "+0", record.Options{}), gone)
			c.enqueue(c.stored, "new"+id, job{})
		}
		c.call(Cancel, "zeroth", c.says(script.LetterReady))
		c.call(Get, "gatekeeper", func(o *Op, err error) {
			if err != nil || o.Row[0] == "" {
				t.Error(o.Row, err)
			}
		})
		c.release()
		require.Equal(t, []string{"enqueue 1", "enqueue 2", "cancel 3", "delete 2", "reschedule 2", "revive 2", "get 1"}, c.log.calls())
		require.EqualValues(t, 1, pipes.n.Load())
	})
}

// Calls about one ID keep their order, and others do not wait for them.
func TestCommitKeepsCallsAboutOneIDApart(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		c.call(Cancel, "hot", c.says(script.LetterGone))
		c.enqueue(c.stored, "hot", job{})
		c.call(Cancel, "hot", c.says(script.LetterReady))
		c.call(Cancel, "hot", c.says(script.LetterGone))
		c.enqueue(c.stored, "hot", job{payload: []byte("2")})
		c.start(t.Context(), moved("hot", "+3600000", record.Options{DueIn: hour}), c.says(script.LetterReady))
		c.enqueue(c.stored, "other", job{})
		c.release()
		require.Equal(t, []string{"enqueue 1", "enqueue 1", "cancel 1"}, c.log.calls()[:3], "other goes with the first")
		require.NoError(t, c.rdb.ZScore(t.Context(), "delayq:{topic}:bucket", "hot").Err())
	})
}

// A caller that goes before its call was sent gets its context's error, and nothing is done. One
// that goes later cannot know the outcome of what writes.
func TestCommitLeftByEachKind(t *testing.T) {
	for name, sent := range map[string]bool{"pending": false, "in flight": true} {
		t.Run(name, func(t *testing.T) {
			holding(t, func(t *testing.T, c *commitTest) {
				ctx, cancel := context.WithCancel(t.Context())
				var cancelled, got error
				c.start(ctx, &Op{Kind: Cancel, Topic: "topic", ID: "zeroth"}, into(&cancelled))
				c.start(ctx, &Op{Kind: Get, Topic: "topic", ID: "gatekeeper"}, into(&got))
				second := make(chan struct{})
				if sent {
					c.fault.Again("zeroth", func() { <-second })
					c.release()
				}
				cancel()
				synctest.Wait()
				require.ErrorIs(t, cancelled, context.Canceled)
				require.Equal(t, sent, isUnknown(cancelled))
				require.ErrorIs(t, got, context.Canceled)
				require.False(t, isUnknown(got), "it writes nothing")
				close(second)
				c.release()
				require.Equal(t, !sent, c.has("zeroth"))
			})
		})
	}
}

// A hook crashes in a flight of several kinds: each caller hears of it, and the next ones are not
// in its way.
func TestCommitOfManyKindsCrashes(t *testing.T) {
	for what, with := range crashes {
		t.Run(what, func(t *testing.T) {
			holding(t, func(t *testing.T, c *commitTest) {
				var pipes pipelines
				c.rdb.AddHook(&pipes)
				var cancelled, got error
				c.call(Cancel, "zeroth", into(&cancelled))
				c.call(Get, "zeroth2", into(&got))
				pipes.with.Store(&with)
				c.release()
				require.True(t, isUnknown(cancelled))
				require.ErrorContains(t, cancelled, `cancel topic "topic" job "zeroth": `)
				require.ErrorContains(t, cancelled, what+": ")
				require.ErrorIs(t, got, script.ErrCut)
				require.False(t, isUnknown(got))
				pipes.with.Store(nil)
				c.call(Cancel, "zeroth", c.says(script.LetterReady))
			})
		})
	}
}

// stage puts jobs into a topic, one for each kind of call that needs one.
func stage(t *testing.T, c *caller) {
	t.Helper()
	for id, when := range map[string]string{"ready": "+0", "back": "+0", "dead": "+0", "scheduled": "+3600000"} {
		require.NoError(t, c.do(t.Context(), job{when: when}.store(t, "topic", id)))
	}
	buried := &Op{Kind: Bury, Topic: "topic", ID: "dead"}
	require.NoError(t, c.do(t.Context(), buried))
	require.EqualValues(t, script.LetterReady, buried.Letter)
	keys, done := script.NewKeys(c.Prefix, "topic"), job{}.store(t, "topic", "done").Fresh
	kept := record.Done{Attempt: 1}.Encode(nil) + done.at(1)
	require.NoError(t, c.Redis.HSet(t.Context(), keys.Results, "done", kept).Err())
	require.NoError(t, c.Redis.ZAdd(t.Context(), keys.Done, redis.Z{Score: 1e13, Member: "done"}).Err())
}

// everyKind returns an operation of each kind that succeeds on a stage, and what the scripts say.
func everyKind(t *testing.T) (list []*Op, letters string) {
	list = []*Op{
		job{}.store(t, "topic", "new"), moved("ready", "+3600000", record.Options{DueIn: hour}),
		{Kind: Cancel, Topic: "topic", ID: "scheduled"}, {Kind: Revive, Topic: "topic", ID: "dead"},
		{Kind: Get, Topic: "topic", ID: "back"}, {Kind: Delete, Topic: "topic", ID: "done"},
	}
	return list, string([]byte{
		script.LetterStored, script.LetterReady, script.LetterScheduled, script.LetterDead, 0, script.LetterDone,
	})
}

func lettersOf(list []*Op) string {
	var all []byte
	for _, o := range list {
		all = append(all, o.Letter)
	}
	return string(all)
}

// sendAll sends operations in one flight.
func sendAll(t *testing.T, c *caller, list []*Op) (*Group, error) {
	g := c.For("topic", Cancel)
	defer g.Release()
	failed, unconfirmed := g.send(t.Context(), &g.series, list, false)
	require.NoError(t, unconfirmed)
	for _, o := range list {
		require.True(t, o.settled, o.Kind.Name)
	}
	return g, failed
}

func requireAllDone(t *testing.T, c *caller, list []*Op, letters string) {
	t.Helper()
	for _, o := range list {
		require.NoError(t, o.Err)
	}
	require.Equal(t, letters, lettersOf(list))
	keys := script.NewKeys(c.Prefix, "topic")
	in := func(key string) []string { return c.Redis.ZRange(t.Context(), key, 0, -1).Val() }
	require.ElementsMatch(t, []string{"new", "dead", "back"}, c.Redis.LRange(t.Context(), keys.Ready, 0, -1).Val())
	require.Equal(t, []string{"ready"}, in(keys.Bucket))
	require.Empty(t, in(keys.Dead))
	require.Empty(t, in(keys.Done))
	require.ElementsMatch(t, []string{"new", "dead", "back", "ready"}, c.Redis.HKeys(t.Context(), keys.Pool).Val())
	require.NotEmpty(t, list[4].Row[0])
}

// A flight whose replies are lost is sent again by go-redis, and has the outcomes of the first time
// whatever has happened in between.
func TestFlightOfAllKindsWithALostReply(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		loadScripts(t, rdb)
		other := newCaller(rdb, redistest.Prefix(t))
		fault := &redistest.Fault{Lose: true, Done: true}
		lossy := redis.NewClient(redistest.Faulty(rdb, fault))
		redistest.InRoles(t, lossy)
		defer func() { require.NoError(t, lossy.Close()) }()
		c := newCaller(lossy, other.Prefix)
		stage(t, c)
		again := job{}.store(t, "topic", "scheduled")
		fault.Again(fmt.Sprint(script.Get.Digest), func() {
			if err := other.do(t.Context(), again); err != nil {
				t.Error(err)
			}
		})
		list, letters := everyKind(t)
		g, err := sendAll(t, c, list)
		require.NoError(t, err)
		require.True(t, fault.Happened())
		require.Equal(t, letters, lettersOf(list))
		keys := script.NewKeys(c.Prefix, "topic")
		require.Contains(t, rdb.LRange(t.Context(), keys.Ready, 0, -1).Val(), "scheduled", "the new one is left alone")
		for _, counter := range []string{"cancelled", "revived", "deleted"} {
			require.Equal(t, "1", rdb.HGet(t.Context(), keys.Stats, counter).Val(), counter)
		}
		require.Len(t, g.series.Free, 5, "each call that writes has a receipt")
	})
}

// After NOSCRIPT only the scripts that Redis does not know are sent again.
func TestFlightOfAllKindsWithoutScripts(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	c := newCaller(rdb, redistest.Prefix(t))
	stage(t, c)
	require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
	require.NoError(t, rdb.ScriptLoad(t.Context(), fmt.Sprint(script.Revive.Text)).Err())
	list, letters := everyKind(t)
	_, err := sendAll(t, c, list)
	require.NoError(t, err)
	requireAllDone(t, c, list, letters)
	require.Equal(t, "1", rdb.HGet(t.Context(), script.NewKeys(c.Prefix, "topic").Stats, "revived").Val())
}

// In a cluster each call of a flight has its own connection. A hook of a node that crashes ends
// only its own call.
func TestFlightOfAllKindsInACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.SharedCluster(t).Client(t)
	c := newCaller(cluster, redistest.Prefix(t))
	stage(t, c)
	list, letters := everyKind(t)
	_, err := sendAll(t, c, list)
	require.NoError(t, err)
	requireAllDone(t, c, list, letters)

	if redistest.Roles() {
		return // then other clients make the calls
	}
	broken := &crashing{with: func() { panic("oh no") }}
	cluster.AddHook(broken)
	broken.on.Store(true)
	list, _ = everyKind(t)
	_, err = sendAll(t, c, list)
	require.True(t, isUnknown(err))
	broken.on.Store(false)
	for _, o := range list {
		require.ErrorContains(t, o.Err, "oh no")
	}
}

// Calls that have no room in one reply, or would make Redis read too much, go on in the next one.
func TestCommitOfLargeJobs(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		const jobs, bytes = 7, 400 << 10
		for i := range jobs {
			c.enqueue(c.stored, fmt.Sprint(i), job{payload: make([]byte, bytes), opts: record.Options{ExpireIn: hour}})
		}
		c.release()
		second := make(chan struct{})
		c.fault.Again("again", func() { <-second })
		c.enqueue(c.stored, "again", job{})
		c.log.events = nil
		for i := range jobs {
			c.call(Get, fmt.Sprint(i), func(o *Op, err error) {
				if err != nil || len(o.Row[0]) < bytes {
					t.Error(o.ID, len(o.Row), err)
				}
			})
		}
		for i := range jobs {
			c.start(t.Context(), moved(fmt.Sprint(i), "+60000", record.Options{DueIn: 60_000}), c.says(script.LetterReady))
		}
		close(second)
		synctest.Wait()
		require.Greater(t, len(c.log.calls()), 3+jobs/3, "about 1 MiB at a time")
		require.EqualValues(t, jobs, c.rdb.ZCard(t.Context(), "delayq:{topic}:bucket").Val())
	})
}

// An operation that the script keeps asking about ends with an error.
func TestRescheduleAsksTenTimes(t *testing.T) {
	t.Parallel()
	o := moved("x", "+0", record.Options{})
	for range mostAsked {
		require.False(t, o.settled)
		readRescheduled(nil, []*Op{o}, script.Reply{"ok", int64(1), "p", []any{""}})
	}
	require.ErrorIs(t, o.Err, script.ErrReply)
}

// A call that the script leaves undone for ever ends with an error.
func TestCallsThatAreNeverAnswered(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		o := *rdb.(*redis.Client).Options()
		own := redis.NewClient(&o)
		defer func() { require.NoError(t, own.Close()) }()
		own.AddHook(mute{})
		c := newCaller(own, redistest.Prefix(t))
		for _, k := range []*Kind{Cancel, Delete, Revive, Bury, Get} {
			err := c.do(t.Context(), &Op{Kind: k, Topic: "topic", ID: "x"})
			require.ErrorIs(t, err, script.ErrReply, k.Name)
			require.True(t, strings.HasPrefix(err.Error(), k.Name+` topic "topic" job "x": `), err)
		}
	})
}

// mute is a hook that makes the replies of scripts say nothing.
type mute struct{}

func (mute) DialHook(next redis.DialHook) redis.DialHook { return next }
func (mute) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (mute) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if scripted(cmd) {
			cmd.(*redis.Cmd).SetVal([]any{"ok", time.Now().UnixMilli()})
			return nil
		}
		return next(ctx, cmd)
	}
}
