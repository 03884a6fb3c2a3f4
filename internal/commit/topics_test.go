package commit

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// A topicsTest is a caller in a bubble whose additions to the set of topics can fail.
type topicsTest struct {
	*caller
	t    *testing.T
	rdb  *redis.Client
	adds failAdds
	logs logText // of the process, so these tests are not parallel
}

// A logText is the text of a log.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func inTopicsTest(t *testing.T, test func(t *testing.T, c *topicsTest)) {
	t.Helper()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		c := &topicsTest{t: t, rdb: rdb}
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&c.logs, nil)))
		defer slog.SetDefault(before)
		own := redis.NewClient(rdb.Options())
		defer func() {
			_ = own.Close()         // it may be closed already
			time.Sleep(time.Minute) // a topic that is still owed is given up
			synctest.Wait()
		}()
		own.AddHook(&c.adds)
		c.caller = newCaller(own, "delayq")
		test(t, c)
	})
}

func (c *topicsTest) enqueue(ctx context.Context, topic, id string) error {
	return c.do(ctx, job{}.store(c.t, topic, id))
}

func (c *topicsTest) named(topic string) bool {
	return c.rdb.SIsMember(c.t.Context(), script.TopicsKey("delayq"), topic).Val()
}

func (c *topicsTest) stored(topic string) int64 {
	return c.rdb.HLen(c.t.Context(), script.NewKeys("delayq", topic).Pool).Val()
}

// A job is stored only after the name of its topic: nobody would find the job otherwise.
func TestTopicIsNamedBeforeItsFirstJob(t *testing.T) {
	inTopicsTest(t, func(t *testing.T, c *topicsTest) {
		c.adds.left.Store(1)
		err := c.enqueue(t.Context(), "topic", "first")
		require.ErrorIs(t, err, errAdd)
		require.ErrorIs(t, err, errUnrecorded)
		require.NotErrorIs(t, err, script.ErrUnknown, "nothing was stored")
		require.Zero(t, c.stored("topic"))
		require.NoError(t, c.enqueue(t.Context(), "topic", "first"))
		require.True(t, c.named("topic"))

		// Calls of other kinds do not need the name.
		c.adds.left.Store(1)
		require.NoError(t, c.do(t.Context(), &Op{Kind: Cancel, Topic: "other", ID: "id"}))
		refused, rest := job{}.store(t, "other", "new"), &Op{Kind: Cancel, Topic: "other", ID: "id"}
		g := c.For("other", Enqueue)
		defer g.Release()
		failed, _ := g.send(t.Context(), c.Series, []*Op{refused, rest}, false)
		require.ErrorIs(t, failed, errAdd)
		require.ErrorIs(t, refused.Err, errAdd)
		require.True(t, rest.settled)
		require.NoError(t, rest.Err)
		require.Zero(t, c.stored("other"))
	})
}

// The plan of an outbox is not carried out without the name, and its rows stay open.
func TestPlanNeedsTheName(t *testing.T) {
	inTopicsTest(t, func(t *testing.T, c *topicsTest) {
		require.NoError(t, c.rdb.Set(t.Context(), script.TopicsKey("delayq"), "of the wrong type", 0).Err())
		row := job{}.store(t, "topic", "id")
		plan := Plan{Series: "relay", Number: 1, Tag: "tag"}
		_, err := c.SendPlan(t.Context(), plan, []*Op{row}, func(int) int { return 1 })
		require.ErrorIs(t, err, errUnrecorded)
		require.Equal(t, script.CodeWrongType, script.Code(err))
		require.False(t, row.Settled(), "its outcome is not an error of its own")

		// A name without an answer says nothing of the rows: they were not sent.
		require.NoError(t, c.rdb.Del(t.Context(), script.TopicsKey("delayq")).Err())
		c.adds.left.Store(1)
		lost, err := c.SendPlan(t.Context(), plan, []*Op{row}, func(int) int { return 1 })
		require.ErrorIs(t, err, errAdd)
		require.NotErrorIs(t, err, script.ErrUnknown)
		require.Empty(t, lost)
		require.Equal(t, FateAway, FateOf(err))
		require.Zero(t, c.stored("topic"))
	})
}

// A caller whose context ends when its job is stored, before the name is confirmed, leaves a topic
// that is found.
func TestNameIsConfirmedAfterTheCallersContext(t *testing.T) {
	inTopicsTest(t, func(t *testing.T, c *topicsTest) {
		require.NoError(t, c.enqueue(t.Context(), "topic", "first"))
		k := script.NewKeys("delayq", "topic") // somebody removes the topic
		require.NoError(t, c.rdb.Del(t.Context(), script.TopicsKey("delayq"), k.Pool, k.Ready, k.Stats).Err())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		fault := &redistest.Fault{What: "second", After: cancel}
		faulty := redis.NewClient(redistest.Faulty(c.rdb, fault))
		redistest.InRoles(t, faulty)
		defer func() { require.NoError(t, faulty.Close()) }()
		faulty.AddHook(&c.adds)
		c.Redis, c.Scripts.RDB = faulty, faulty
		require.NoError(t, c.enqueue(ctx, "topic", "second"))
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		require.True(t, c.named("topic"))
	})
}

// A name that Redis does not take after the job is added in the background, until Redis takes it.
func TestNameIsOwed(t *testing.T) {
	inTopicsTest(t, func(t *testing.T, c *topicsTest) {
		for _, topic := range []string{"a", "b"} {
			require.NoError(t, c.enqueue(t.Context(), topic, "first"))
			k := script.NewKeys("delayq", topic)
			require.NoError(t, c.rdb.Del(t.Context(), script.TopicsKey("delayq"), k.Pool, k.Ready, k.Stats).Err())
		}
		c.adds.left.Store(7)
		require.NoError(t, c.enqueue(t.Context(), "a", "second"))
		require.NoError(t, c.enqueue(t.Context(), "b", "second"))
		require.False(t, c.named("a"))
		require.Contains(t, c.logs.String(), `level=ERROR msg="topic not recorded" topic=a err="the set is away"`)
		require.NotContains(t, c.logs.String(), "topic=b", "one line for an outage")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.True(t, c.named("a"))
		require.True(t, c.named("b"))
		require.Contains(t, c.logs.String(), `level=INFO msg="topic recorded" count=2`)
		require.Empty(t, c.owed)

		// A topic that was removed is not owed any more.
		c.adds.left.Store(100)
		c.owe("a", errAdd)
		c.Forget("a")
		require.NoError(t, c.rdb.SRem(t.Context(), script.TopicsKey("delayq"), "a").Err())
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.False(t, c.named("a"))
		require.False(t, c.paying)
		require.EqualValues(t, 100, c.adds.left.Load())
	})
}

// A client that has added a name does not refuse jobs because Redis does not take it again.
func TestNameThatIsKnownStopsNoJob(t *testing.T) {
	inTopicsTest(t, func(t *testing.T, c *topicsTest) {
		require.NoError(t, c.enqueue(t.Context(), "topic", "first"))
		require.NoError(t, c.rdb.Del(t.Context(), script.TopicsKey("delayq")).Err())
		time.Sleep(recordEvery)
		c.adds.left.Store(3)
		require.NoError(t, c.enqueue(t.Context(), "topic", "second"))
		require.NoError(t, c.enqueue(t.Context(), "topic", "third"), "it does not try each time")
		synctest.Wait()
		require.EqualValues(t, 2, c.adds.left.Load())
		require.False(t, c.named("topic"))
		require.Contains(t, c.logs.String(), `level=ERROR msg="topic not recorded" count=1 err="the set is away"`)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.True(t, c.named("topic"))
		require.Contains(t, c.logs.String(), `level=INFO msg="topic recorded" count=1`)
		require.Equal(t, 2, strings.Count(c.logs.String(), "\n"), "two lines for an outage")
	})
}

// A call in a topic that the client has added before does not wait for the set of topics: on a
// Cluster, it can be on a node that hangs.
func TestSetOfTopicsThatHangs(t *testing.T) {
	inTopicsTest(t, func(t *testing.T, c *topicsTest) {
		require.NoError(t, c.enqueue(t.Context(), "topic", "0"))
		require.NoError(t, c.rdb.Del(t.Context(), script.TopicsKey("delayq")).Err())
		c.adds.hangs.Store(true)
		enqueue := func(topic, id string) (time.Duration, error) {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := c.enqueue(ctx, topic, id)
			return time.Since(began), err
		}
		for _, id := range []string{"1", "2", "3"} {
			time.Sleep(recordEvery)
			took, err := enqueue("topic", id)
			require.NoError(t, err)
			require.Less(t, took, time.Second)
		}
		took, err := enqueue("new", "id")
		require.ErrorIs(t, err, errUnrecorded)
		require.Equal(t, 10*time.Second, took, "a new topic waits: nobody would find its job")
		require.False(t, c.named("topic"))
		require.Equal(t, 1, strings.Count(c.logs.String(), "\n"))
		c.adds.hangs.Store(false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.True(t, c.named("topic"))
		require.Empty(t, c.owed)

		// What Redis has, nobody logs, not even if the client is closed before it is added again.
		lines := c.logs.String()
		time.Sleep(recordEvery)
		require.NoError(t, c.enqueue(t.Context(), "topic", "4"))
		synctest.Wait()
		require.NoError(t, c.Redis.(*redis.Client).Close())
		c.owe("topic", nil)
		synctest.Wait()
		require.Empty(t, c.owed)
		require.Equal(t, lines, c.logs.String())
	})
}

// A client of a Cluster whose topics key is on a node that is away asks for the nodes anew.
func TestNodeOfTheTopicsThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				asked.Add(1)
				return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: "127.0.0.1:1"}}}}, nil
			},
		})
		defer func() {
			require.NoError(t, rdb.Close())
			time.Sleep(time.Second) // go-redis rests after it has asked
		}()
		adds := &failAdds{}
		adds.left.Store(1)
		rdb.AddHook(adds)
		require.ErrorIs(t, newCaller(rdb, "delayq").do(t.Context(), job{}.store(t, "topic", "id")), errAdd)
		synctest.Wait()
		require.EqualValues(t, 1, asked.Load())
	})
}
