package faults_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/rig"
	"github.com/delayq/delayq/internal/redistest"
)

// patientFailover is how long a failover with all that follows may take.
const patientFailover = 60 * time.Second

// newReplicated is a bench whose Redis has a replica, watched by three Sentinels. The client waits
// for the replica, so nothing that was acknowledged may be lost.
func newReplicated(t *testing.T) (b *bench, replica *redistest.Server, access rig.Redis) {
	t.Helper()
	b = newBench(t)
	replica = redistest.Replica(t, b.server, redistest.AOF...)
	access = rig.Redis{Sentinels: redistest.Sentinels(t, b.server, 3), Master: redistest.MasterName}
	rdb := access.Client()
	t.Cleanup(func() { _ = rdb.Close() })
	b.client = rig.NewClient(rdb, b.rec, delayq.Prefix(b.prefix), delayq.WaitReplicas(1, 2*time.Second))
	b.options.Failover = true
	return b, replica, access
}

// newMaster waits until a server is the master and makes it the one that the test looks at.
func (b *bench) newMaster(s *redistest.Server) {
	b.t.Helper()
	rdb := s.Client(b.t)
	eventually(b.t, "failover", patientFailover, func() bool {
		info, err := rdb.Info(context.Background(), "replication").Result()
		return err == nil && strings.Contains(info, "role:master")
	})
	b.direct = rdb
}

// TestFailoverLosesNothingConfirmed (A7, sidekiq#2999): the master dies with handlers running and
// jobs waiting, a Sentinel promotes the replica. Every job that the replica had confirmed runs;
// jobs that were done may run again, since their acks may not have reached the replica.
func TestFailoverLosesNothingConfirmed(t *testing.T) {
	b, replica, access := newReplicated(t)
	b.worker("w", func(c *rig.WorkerConfig) { c.Redis = access; c.Slots = 200 })
	b.put(200, rig.Task{ID: "running", Steps: []string{"hang:1s"}, Retries: -1})
	b.put(60, rig.Task{ID: "waiting", Steps: []string{"hang:100ms"}, Retries: -1})
	b.put(20, rig.Task{ID: "later", Delay: 3 * time.Second, Retries: -1})
	b.awaitN(200, "start", is(rig.OpStart, ""))
	heal := b.fault("failover")
	require.NoError(t, b.server.Kill())
	b.newMaster(replica)
	heal()
	b.drained(patientFailover)
	report := b.judge()
	require.Equal(t, 280, report.Finished)
	require.Zero(t, report.LostInFailover)
}

// TestTwoFailoversInARow (J12, J6): there and back. The worker goes on both times, with no
// connection left at the wrong server.
func TestTwoFailoversInARow(t *testing.T) {
	b, replica, access := newReplicated(t)
	w := b.worker("w", func(c *rig.WorkerConfig) { c.Redis = access })
	servers := []*redistest.Server{b.server, replica}
	for round := range 2 {
		id := fmt.Sprintf("round%d-", round)
		b.put(10, rig.Task{ID: id, Retries: -1})
		b.awaitN(10, "ack "+id, func(e rig.Event) bool {
			return e.Op == rig.OpSettled && e.Result == "acked" && strings.HasPrefix(e.ID, id)
		})
		old, next := servers[round%2], servers[(round+1)%2]
		heal := b.fault("failover")
		require.NoError(t, old.Kill())
		b.newMaster(next)
		eventually(t, "all Sentinels know", patientFailover, func() bool { return knowMaster(access.Sentinels, next.Addr()) })
		require.NoError(t, old.Restart())
		rdb := old.Client(t)
		eventually(t, "old master follows", patientFailover, func() bool {
			info, err := rdb.Info(context.Background(), "replication").Result()
			return err == nil && strings.Contains(info, "role:slave") && strings.Contains(info, "master_link_status:up")
		})
		heal()
	}
	b.put(10, rig.Task{ID: "end", Retries: -1})
	b.drained(patientFailover)
	b.judge()
	list, err := b.direct.ClientList(t.Context()).Result()
	require.NoError(t, err)
	require.Less(t, strings.Count(list, "\n"), 40)
	require.NotContains(t, w.Log(), "panic")
}

// knowMaster tells whether all Sentinels have heard who the master is.
func knowMaster(sentinels []string, master string) bool {
	for _, addr := range sentinels {
		sentinel := redis.NewSentinelClient(&redis.Options{Addr: addr})
		now, err := sentinel.GetMasterAddrByName(context.Background(), redistest.MasterName).Result()
		if _ = sentinel.Close(); err != nil || net.JoinHostPort(now[0], now[1]) != master {
			return false
		}
	}
	return true
}

// TestClusterMasterDies (J7, C13): 3+3 nodes, six topics; one master is killed under load. The
// topics of the others go on, those of the dead one come back with its replica.
func TestClusterMasterDies(t *testing.T) {
	b := newBench(t)
	cluster := redistest.StartCluster(t, 3, 1)
	access := rig.Redis{Cluster: cluster.Addrs()}
	rdb := access.Client()
	t.Cleanup(func() { _ = rdb.Close() })
	b.client = rig.NewClient(rdb, b.rec, delayq.Prefix(b.prefix), delayq.WaitReplicas(1, 2*time.Second))
	b.options.Failover = true
	topics := []string{"a", "b", "c", "d", "e", "f"}
	b.worker("w", func(c *rig.WorkerConfig) { c.Redis = access; c.Topics = topics })
	all := 0
	put := func(id string, n int, tries int) {
		for _, topic := range topics {
			for i := range n {
				task := &rig.Task{Topic: topic, ID: fmt.Sprint(id, i), Steps: []string{"hang:50ms"}, Retries: -1}
				var err error
				for range tries { // every try is another ID: the one before may be stored
					if err = b.client.Put(t.Context(), task, false); err == nil {
						break
					}
					task = &rig.Task{Topic: topic, ID: task.ID + "'", Steps: task.Steps, Retries: -1}
				}
				require.NoError(t, err)
				all++
			}
		}
	}
	put("before", 10, 1)
	heal := b.fault("failover")
	require.NoError(t, cluster.Nodes[1].Kill())
	b.client = b.newClient(rdb) // the new master has no replica to wait for
	put("during", 3, 200)
	heal()
	eventually(t, "all done", patientFailover, func() bool {
		done := map[string]bool{}
		for _, e := range b.events(is(rig.OpEnd, "ok")) {
			done[e.Topic+" "+strings.TrimRight(e.ID, "'")] = true
		}
		return len(done) == all
	})
	for _, topic := range topics {
		eventually(t, "topic "+topic+" is empty", patientFailover, func() bool {
			info, err := rig.StatsOf(context.Background(), b.client.Inspector, topic)
			return err == nil && info.Scheduled+info.Ready+info.Running == 0
		})
	}
}

// TestSlotMovesUnderLoad (J7, asynq#138): the slot of a topic is moved to another node, key by key,
// while jobs are enqueued and run. MOVED, ASK and TRYAGAIN are no failures of jobs.
func TestSlotMovesUnderLoad(t *testing.T) {
	b := newBench(t)
	cluster := redistest.StartCluster(t, 3, 1)
	access := rig.Redis{Cluster: cluster.Addrs()}
	rdb := access.Client().(*redis.ClusterClient)
	t.Cleanup(func() { _ = rdb.Close() })
	b.client = b.newClient(rdb)
	b.worker("w", func(c *rig.WorkerConfig) { c.Redis = access })
	ctx := t.Context()
	move := b.slotMove(cluster, rdb, "t")
	stop, loaded := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				loaded <- n
				return
			default:
			}
			if b.client.Put(context.Background(), &rig.Task{Topic: "t", ID: fmt.Sprint(n), Delay: time.Duration(n%3) * 100 * time.Millisecond, Retries: -1}, false) == nil {
				n++
			} else {
				time.Sleep(10 * time.Millisecond) // in the middle of the move Redis says TRYAGAIN
				n++
			}
		}
	}()
	b.awaitN(50, "ack", is(rig.OpSettled, "acked"))
	heal := b.fault("reshard")
	dst := move()
	moved := rig.Mono()
	b.awaitN(50, "ack after the move", func(e rig.Event) bool { return e.Mono > moved && e.Op == rig.OpSettled && e.Result == "acked" })
	close(stop)
	require.Positive(t, <-loaded)
	heal()
	eventually(t, "empty", patientFailover, func() bool {
		info, err := rig.StatsOf(ctx, b.client.Inspector, "t")
		return err == nil && info.Scheduled+info.Ready+info.Running == 0
	})
	b.direct = dst
	b.judge()
}

// slotMove prepares a move of the slot of a topic. move moves it to another master, key by key, and
// returns a client of that node.
func (b *bench) slotMove(cluster *redistest.Cluster, rdb *redis.ClusterClient, topic string) (move func() *redis.Client) {
	b.t.Helper()
	t, ctx := b.t, b.t.Context()
	slot, err := rdb.ClusterKeySlot(ctx, "{"+topic+"}").Result()
	require.NoError(t, err)
	from, to := 0, 0
	for i, n := range cluster.Nodes {
		//lint:ignore SA1019 CLUSTER SHARDS is new in Redis 7, and delayq runs on 6.2
		if list, err := n.Client(t).ClusterSlots(ctx).Result(); err == nil && i == 0 {
			for _, r := range list {
				if int(slot) >= r.Start && int(slot) <= r.End {
					for j, other := range cluster.Nodes {
						if r.Nodes[0].Addr == other.Addr() {
							from, to = j, (j+1)%3
						}
					}
				}
			}
		}
	}
	src, dst := cluster.Nodes[from].Client(t), cluster.Nodes[to].Client(t)
	ids := make([]string, 2)
	for i, n := range []*redis.Client{src, dst} {
		ids[i], err = n.Do(ctx, "CLUSTER", "MYID").Text()
		require.NoError(t, err)
	}
	return func() *redis.Client {
		require.NoError(t, dst.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0]).Err())
		require.NoError(t, src.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1]).Err())
		host, port, _ := strings.Cut(cluster.Nodes[to].Addr(), ":")
		for {
			keys, err := src.ClusterGetKeysInSlot(ctx, int(slot), 10).Result()
			require.NoError(t, err)
			if len(keys) == 0 {
				break
			}
			for _, k := range keys {
				// A busy node can be taken for a dead one for a moment.
				eventually(t, "the key is moved", patientFailover, func() bool {
					return src.Do(ctx, "MIGRATE", host, port, k, 0, 5000, "REPLACE").Err() == nil
				})
			}
		}
		for _, n := range []*redis.Client{dst, src, cluster.Nodes[3-from-to].Client(t)} {
			require.NoError(t, n.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", ids[1]).Err())
		}
		return dst
	}
}

// TestAHundredFailoversLeakNothing (J12, go-redis#1446): two servers change their parts a hundred
// times, and each time the name leads to the new master. A server and a client in this process work
// after every change, and in the end there are as many goroutines and open files as after the first
// few. It does not run in parallel: it looks at the whole process.
func TestAHundredFailoversLeakNothing(t *testing.T) {
	changes := 100
	if testing.Short() {
		changes = 20
	}
	b := newLoneBench(t, "--repl-diskless-sync-delay", "0")
	servers := []*redistest.Server{b.server, redistest.Replica(t, b.server, "--repl-diskless-sync-delay", "0")}
	direct := []*redis.Client{servers[0].Client(t), servers[1].Client(t)}
	rdb := b.through(b.proxy)
	client := delayq.NewClient(rdb, delayq.Prefix(b.prefix))
	handled := make(chan string, 2*changes)
	r := b.serve(rdb, func(s *delayq.Server) {
		s.HandlerFunc("t", func(_ context.Context, job *delayq.Job) error { handled <- job.ID; return nil })
	})
	replicated := func(replica int) {
		eventually(t, "replication", patient, func() bool {
			info, err := direct[replica].Info(context.Background(), "replication").Result()
			return err == nil && strings.Contains(info, "role:slave") && strings.Contains(info, "master_link_status:up")
		})
	}
	works := func(id string) {
		eventually(t, "enqueue "+id, patient, func() bool {
			_, err := client.Enqueue(context.Background(), "t", id, nil, delayq.Replace())
			return err == nil
		})
		for limit := time.After(patient); ; {
			select {
			case got := <-handled:
				if got == id {
					return
				}
			case <-limit:
				t.Fatalf("%s is not run", id)
			}
		}
	}
	change := func(i int) {
		old, next := i%2, (i+1)%2
		replicated(next)
		host, port, err := net.SplitHostPort(servers[next].Addr())
		require.NoError(t, err)
		require.NoError(t, direct[next].Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
		require.NoError(t, direct[old].Do(t.Context(), "REPLICAOF", host, port).Err())
		b.proxy.Retarget(servers[next].Addr())
		if i%3 > 0 { // else the connections to the old master stay, which answers READONLY
			b.proxy.Reset()
		}
		works(fmt.Sprint("job", i))
	}
	for i := range 4 {
		change(i)
	}
	goroutines, _, files := usage()
	for i := 4; i < changes; i++ {
		change(i)
	}
	eventually(t, "goroutines and files as before", patient, func() bool {
		g, _, f := usage()
		return g <= goroutines+10 && f <= files+10
	})
	require.NotZero(t, errorsIn(r.log.String(), "redis away"))
	r.end(t)
}
