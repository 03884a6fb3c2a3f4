package tests

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// A tripCount counts the round trips and the commands of a client.
type tripCount struct {
	mu              sync.Mutex
	trips, commands int
}

func (c *tripCount) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *tripCount) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.add(cmd)
		return next(ctx, cmd)
	}
}

func (c *tripCount) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.add(cmds...)
		return next(ctx, cmds)
	}
}

func (c *tripCount) add(commands ...redis.Cmder) {
	if name := commands[0].Name(); name == "hello" || name == "client" {
		return // go-redis introduces a new connection, whenever it needs one
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trips, c.commands = c.trips+1, c.commands+len(commands)
}

func (c *tripCount) take() [2]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	got := [2]int{c.trips, c.commands}
	c.trips, c.commands = 0, 0
	return got
}

// Each call makes as many round trips, with as many commands, as its comment says. An Inspector
// that nobody asks makes none.
func TestInspectorCosts(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t, redistest.NoRoles...).Client(t)
	needRO(t, rdb)
	require.NoError(t, queuetest.LoadScripts(t.Context(), rdb))
	prefix, ctx := redistest.Prefix(t), t.Context()
	client := delayq.NewClient(rdb, delayq.Prefix(prefix))
	const topics = 100
	jobs := make([]delayq.NewJob, topics)
	names := make([]string, topics)
	for i := range jobs {
		names[i] = fmt.Sprintf("t%03d", i)
		jobs[i] = delayq.NewJob{Topic: names[i], ID: "same", Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}}
	}
	_, err := client.EnqueueBatch(ctx, jobs)
	require.NoError(t, err)
	require.NoError(t, client.Schedule(ctx, "t000", "s", delayq.Every(time.Hour), nil))
	_, err = client.Enqueue(ctx, "t001", "ready", nil)
	require.NoError(t, err)
	require.NoError(t, rdb.HSet(ctx, script.ServersKey(prefix), "server", fmt.Sprint(time.Now().Add(time.Hour).UnixMilli(), " {}")).Err())

	count := new(tripCount)
	counted := redis.NewClient(rdb.Options())
	defer func() { require.NoError(t, counted.Close()) }()
	counted.AddHook(count)
	insp := delayq.NewInspector(counted, delayq.Prefix(prefix))
	require.Zero(t, count.take())
	require.Zero(t, counted.PoolStats().TotalConns)
	from := time.Now()
	for name, c := range map[string]struct {
		call func() error
		cost [2]int // round trips, commands
	}{
		"Topics":              {func() error { _, err := insp.Topics(ctx); return err }, [2]int{1, 1}},
		"Stats of one":        {func() error { _, err := insp.Stats(ctx, "t007"); return err }, [2]int{1, 2 + 17}},
		"Stats of ready jobs": {func() error { _, err := insp.Stats(ctx, "t001"); return err }, [2]int{2, 2 + 17 + 1}},
		"Stats of 100":        {func() error { _, err := insp.Stats(ctx, names...); return err }, [2]int{2, 2 + 17*topics + 1}},
		"Stats of all":        {func() error { _, err := insp.Stats(ctx); return err }, [2]int{3, 1 + 2 + 17*topics + 1}},
		"Forecast":            {func() error { _, err := insp.Forecast(ctx, "t000", from, time.Minute, 60); return err }, [2]int{1, 60 + 1}},
		"long Forecast":       {func() error { _, err := insp.Forecast(ctx, "t000", from, time.Minute, 2500); return err }, [2]int{3, 2500 + 3}},
		"DueWithin": {func() error {
			_, err := insp.DueWithin(ctx, from, []time.Duration{time.Minute, time.Hour, 24 * time.Hour}, names...)
			return err
		}, [2]int{1, 3*topics + topics}},
		"History": {func() error {
			_, err := insp.History(ctx, "t000", from.Add(-6*time.Hour), from, time.Minute)
			return err
		}, [2]int{1, 1 + 1}},
		"Servers":       {func() error { _, err := insp.Servers(ctx); return err }, [2]int{2, 2}},
		"Job":           {func() error { _, err := insp.Job(ctx, "t000", "same"); return err }, [2]int{1, 1}},
		"Find":          {func() error { _, err := insp.Find(ctx, "same"); return err }, [2]int{3, 1 + 3*topics + topics}},
		"Find nothing":  {func() error { _, err := insp.Find(ctx, "none"); return err }, [2]int{2, 1 + 3*topics}},
		"Schedules":     {func() error { _, err := insp.Schedules(ctx, "t000"); return err }, [2]int{2, 2}},
		"Schedule":      {func() error { _, err := insp.Schedule(ctx, "t000", "s"); return err }, [2]int{1, 1}},
		"Runs":          {func() error { _, err := insp.Runs(ctx, "t000", "s", 100); return err }, [2]int{1, 1}},
		"Keys":          {func() error { _, err := insp.Keys(ctx, "t000", "", 1000); return err }, [2]int{1, 2}},
		"Undelivered":   {func() error { _, err := insp.Undelivered(ctx, "t000"); return err }, [2]int{1, 2}},
		"Audit":         {func() error { _, err := insp.Audit(ctx, 1000); return err }, [2]int{1, 1}},
		"Explain":       {func() error { _, err := insp.Explain(ctx, "t000", "same"); return err }, [2]int{1, 3}},
		"Explain ready": {func() error { _, err := insp.Explain(ctx, "t001", "ready"); return err }, [2]int{2, 4}},
		"Explain none":  {func() error { _, err := insp.Explain(ctx, "t000", "none"); return err }, [2]int{3, 5}},
		"Redis":         {func() error { _, err := insp.Redis(ctx); return err }, [2]int{2, 4}},
	} {
		require.NoError(t, c.call(), name)
		require.Equal(t, c.cost, count.take(), name)
	}
}

// A topic with partitions costs one round trip more, in which its map is read again.
func TestInspectorCostsOfPartitions(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t, redistest.NoRoles...).Client(t)
	prefix, ctx := redistest.Prefix(t), t.Context()
	client := delayq.NewClient(rdb, delayq.Prefix(prefix))
	for _, topic := range []string{"whole", "parted"} {
		_, err := client.Enqueue(ctx, topic, "same", nil, delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
	}
	require.NoError(t, client.Partition(ctx, "parted", 3))

	count := new(tripCount)
	counted := redis.NewClient(rdb.Options())
	defer func() { require.NoError(t, counted.Close()) }()
	counted.AddHook(count)
	insp := delayq.NewInspector(counted, delayq.Prefix(prefix))
	for name, c := range map[string]struct {
		topics []string
		cost   [2]int
	}{
		"without partitions": {[]string{"whole"}, [2]int{1, 2 + 17}},
		"with partitions":    {[]string{"parted"}, [2]int{2, 2 + 17 + 2 + 3*17}},
		"both":               {[]string{"whole", "parted"}, [2]int{2, 2 + 2*17 + 2 + 3*17}},
	} {
		_, err := insp.Stats(ctx, c.topics...)
		require.NoError(t, err, name)
		require.Equal(t, c.cost, count.take(), name)
	}
}

// A client of a Cluster that may read from replicas sends the calls of an Inspector there: one
// pipeline to each node. The inspector of the ACL file may do that.
func TestInspectorOnACluster(t *testing.T) {
	t.Parallel()
	if testing.Short() || redistest.Roles() {
		t.Skip("starts a cluster, with users of its own")
	}
	c := redistest.StartCluster(t, 3, 3)
	admin, ctx := c.Client(t), t.Context()
	client := delayq.NewClient(admin)
	var names []string
	for i := range 30 {
		name := fmt.Sprintf("t%02d", i)
		names = append(names, name)
		_, err := client.Enqueue(ctx, name, "same", nil, delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
	}
	require.NoError(t, client.Pause(delayq.WithActor(ctx, "ann"), "t00", delayq.Pause{By: "ann"}))
	require.NoError(t, client.Schedule(ctx, "t00", "s", delayq.Every(time.Hour), nil))
	read := func(i *delayq.Inspector) map[string]any {
		all := map[string]any{}
		for name, call := range readings {
			topic := "t00"
			if name == "Job" {
				continue // of another stage
			}
			got, err := call(ctx, i, topic)
			require.NoError(t, err, name)
			all[name] = got
		}
		return all
	}
	want := read(delayq.NewInspector(admin))
	require.Len(t, want["Topics"], len(names))
	require.Len(t, want["Stats"], len(names))
	require.NoError(t, admin.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		needRO(t, node)
		return node.Do(ctx, "WAIT", 1, 60_000).Err()
	}))

	for name, user := range map[string][]string{"6.2": aclUser(t, "inspector"), "7": readOnlyUser(aclUser(t, "inspector"))} {
		require.NoError(t, admin.ForEachShard(ctx, func(_ context.Context, node *redis.Client) error {
			setUser(t, node, append([]string{user[0], "reset"}, append(user[1:], "+cluster|slots", "+command", "+readonly")...)...)
			return node.ConfigResetStat(ctx).Err()
		}))
		opt := c.Options()
		opt.Username, opt.Password, opt.ReadOnly = user[0], "change-me-inspector", true
		rdb := redis.NewClusterClient(opt)
		var mu sync.Mutex
		counts := map[string]*tripCount{}
		rdb.OnNewNode(func(node *redis.Client) {
			mu.Lock()
			defer mu.Unlock()
			counts[node.Options().Addr] = new(tripCount)
			node.AddHook(counts[node.Options().Addr])
		})
		insp := delayq.NewInspector(rdb)
		require.Equal(t, want, read(insp), name)
		for _, count := range counts {
			count.take()
		}
		stats, err := insp.Stats(ctx, names...)
		require.NoError(t, err)
		require.Len(t, stats, len(names))
		commands := 0
		for addr, count := range counts {
			got := count.take()
			require.LessOrEqual(t, got[0], 1, "round trips to %s", addr)
			commands += got[1]
		}
		require.Equal(t, 2+17*len(names), commands)
		require.NoError(t, rdb.Close())
		if name == "7" { // nothing went to a master but what go-redis asks
			require.NoError(t, admin.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
				stats := node.Info(ctx, "commandstats").Val()
				require.NotContains(t, stats, "cmdstat_evalsha")
				require.NotContains(t, stats, "cmdstat_zcount:")
				return nil
			}))
		}
	}
}

// A cursor of a scan belongs to one node. Where each master has several replicas, a call that scans
// stays with one of them. If that one is away, it begins again on the master.
func TestInspectorScansOneReplica(t *testing.T) {
	t.Parallel()
	if testing.Short() || redistest.Roles() {
		t.Skip("starts a cluster")
	}
	c := redistest.StartCluster(t, 1, 2)
	admin, ctx := c.Client(t), t.Context()
	const topics, jobs, schedules, servers = 3000, 2500, 500, 500
	k := script.NewKeys(script.DefaultPrefix, "topic")
	var names []any
	for i := range topics {
		names = append(names, fmt.Sprint("t", i))
	}
	require.NoError(t, admin.SAdd(ctx, script.TopicsKey(script.DefaultPrefix), names...).Err())
	list := make([]delayq.NewJob, jobs)
	leases := []redis.Z{{Score: 1e15, Member: strings.Repeat("-", 1025)}}
	for i := range list {
		list[i] = delayq.NewJob{Topic: "topic", ID: fmt.Sprint(i)}
		leases = append(leases, redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: list[i].ID})
	}
	_, err := delayq.NewClient(admin).EnqueueBatch(ctx, list)
	require.NoError(t, err)
	require.NoError(t, admin.ZAdd(ctx, k.Leases, leases...).Err())
	require.NoError(t, admin.Del(ctx, k.Ready).Err())
	for i := range servers {
		require.NoError(t, admin.HSet(ctx, script.ServersKey(script.DefaultPrefix), fmt.Sprint("server", i), fmt.Sprint(time.Now().Add(time.Hour).UnixMilli(), ` {"topics":{"topic":{"workers":2}}}`)).Err())
	}
	for i := range schedules {
		require.NoError(t, delayq.NewClient(admin).Schedule(ctx, "topic", fmt.Sprint("s", i), delayq.Every(time.Hour), nil))
	}
	require.NoError(t, admin.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		needRO(t, node)
		return node.Do(ctx, "WAIT", 2, 60_000).Err()
	}))

	opt := c.Options()
	opt.ReadOnly = true
	var away atomic.Bool // replicas: commands to them fail
	rdb := redis.NewClusterClient(opt)
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	rdb.OnNewNode(func(node *redis.Client) {
		node.AddHook(replicaAway{node: node, away: &away})
	})
	insp := delayq.NewInspector(rdb)
	for range 4 {
		found, err := insp.Topics(ctx)
		require.NoError(t, err)
		require.Equal(t, topics+1, len(found))
		running := 0
		for _, err := range insp.All(ctx, delayq.Query{Topic: "topic", State: delayq.StateRunning, Limit: 1000}) {
			require.NoError(t, err)
			running++
		}
		require.Equal(t, jobs, running)
		live, err := insp.Servers(ctx)
		require.NoError(t, err)
		require.Len(t, live, servers)
		stats, err := insp.Stats(ctx, "topic")
		require.NoError(t, err)
		require.Equal(t, servers, stats[0].Servers)
		all, err := insp.Schedules(ctx, "topic")
		require.NoError(t, err)
		require.Len(t, all, schedules)
		report, err := insp.Check(ctx, "topic")
		require.NoError(t, err)
		require.EqualValues(t, jobs, report.Jobs)
	}
	away.Store(true)
	found, err := insp.Topics(ctx)
	require.NoError(t, err)
	require.Equal(t, topics+1, len(found))
}

// replicaAway lets the commands of a node that is a replica fail.
type replicaAway struct {
	node *redis.Client
	away *atomic.Bool
}

func (h replicaAway) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h replicaAway) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.away.Load() && cmd.Name() == "sscan" {
			role, err := h.node.Do(ctx, "role").Slice()
			if err == nil && role[0] == "slave" {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				cmd.SetErr(err)
				return err
			}
		}
		return next(ctx, cmd)
	}
}

func (h replicaAway) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
