package delayq

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
)

// Health says how a server is doing, as far as the server knows without asking Redis. See
// [Server.Health].
type Health struct {
	// ID is the server's name in Redis, and Version that of delayq, from the build information.
	ID, Version string

	State ServerState
	Since time.Time // when the server entered State
	Redis RedisHealth

	// Topics holds the topics that the server serves, by name. It is empty while the server does
	// not run.
	Topics []TopicHealth

	// Loops describes the loops of the server, by name: all loops of one name together.
	Loops []LoopHealth

	// Late holds the loops that do not turn, the latest first. In a healthy server it is empty,
	// whatever Redis does.
	Late []LateLoop
}

// RedisHealth says how Redis is doing, as a server sees it. All times are by the server's clock.
type RedisHealth struct {
	AnsweredAt time.Time // the last reply to a script; zero: there was none
	AwaySince  time.Time // when the present outage began; zero: there is none

	// Err is the last error that concerned Redis as a whole, such as a refused connection, and
	// FailedAt when it happened. They remain when Redis is back.
	Err      error
	FailedAt time.Time
}

// TopicHealth says what a server does for a topic.
type TopicHealth struct {
	Topic   string
	Workers int    // its Concurrency; in a pool, the most workers that the topic can have
	Running int    // number of running handlers; a batch is one
	Pool    string // its [Pool]; empty: workers of its own
	// Held is the number of jobs that belong to the server: those that run, those that it has taken
	// ahead, and those whose outcomes it still has to report to Redis.
	Held   int
	Oldest RunningJob // the job that has run longest; zero: none runs

	// Failing holds the calls that Redis answers with an error, and the errors: a missing
	// permission or a key of a wrong type, for example. It is nil if there is none.
	Failing map[string]string
}

// LoopHealth describes the loops of one name: those of all topics, such as promote and take, or one
// of the server itself, such as heartbeat.
type LoopHealth struct {
	Name  string
	Count int
	Late  int // how many of them are late

	// Age is the time since the last turn of the loop that has rested longest. That can be long:
	// settle, for example, waits until a job ends.
	Age time.Duration
}

// A LateLoop is a loop that does not turn.
type LateLoop struct {
	Name  string
	Topic string        // empty: a loop of the server itself
	Late  time.Duration // since it should have turned
}

// Health returns how the server is doing. It makes no call to Redis and never waits for one, so it
// returns at once when Redis is away.
//
// A loop is late when it should have turned more than three ticks ago ([Tick]), and at least 1 s
// ago. Then it hangs: in code of the user that it has called, such as a hook or the handler of the
// [Logger], or by an error in delayq. A loop is not late while it waits for Redis, up to the
// timeout of the call, while it waits for something to do, while other loops use the goroutines
// that it needs, or during the pause after a failure. A handler of a job makes no loop late,
// because it does not run in a loop. After the process was suspended, loops can be late for a
// moment.
//
// Health of a nil or zero Server is the zero Health. It is safe for concurrent use. Cost: it looks
// at every topic and at every job that the server holds, and locks one topic at a time. For 1,000
// idle topics that is about a millisecond.
func (s *Server) Health() Health {
	if s == nil || s.engine == nil {
		return Health{}
	}
	now := s.engine.Health()
	h := Health{
		ID: s.engine.Config.ID, Version: serve.Version(), State: ServerState(now.State), Since: now.Since,
		Redis: RedisHealth{AnsweredAt: now.Answered, AwaySince: now.AwaySince, Err: now.Cause, FailedAt: now.Failed},
	}
	if now.Topics != nil {
		h.Topics = make([]TopicHealth, 0, len(now.Topics))
	}
	for _, t := range now.Topics {
		h.Topics = append(h.Topics, TopicHealth{
			Topic: t.Topic, Workers: t.Workers, Running: t.Running, Pool: t.Pool, Held: t.Held,
			Oldest: RunningJob{ID: t.Oldest, Running: t.Ran}, Failing: t.Failing,
		})
	}
	for _, l := range now.Loops {
		h.Loops = append(h.Loops, LoopHealth(l))
	}
	for _, l := range now.Late {
		h.Late = append(h.Late, LateLoop(l))
	}
	return h
}

// Ready returns a channel that is closed when [Server.Run] has reached Redis and takes jobs. It
// stays closed when the server stops. If Run returns before that, the channel is never closed, nor
// is it for a nil or zero Server.
func (s *Server) Ready() <-chan struct{} {
	if s == nil || s.engine == nil {
		return nil
	}
	return s.engine.Ready()
}

// ServerInfo describes a server. Each server writes it to Redis every five seconds.
type ServerInfo struct {
	ID        string
	SeenAt    time.Time // time of the last heartbeat, by Redis's clock
	Host      string
	PID       int
	StartedAt time.Time // by the server's clock
	Version   string    // of delayq, from the build information
	// State is that of the last heartbeat. A server that begins to drain sends a heartbeat
	// immediately.
	State  ServerState
	Topics map[string]TopicStatus
}

// A ServerState is the state of a server.
type ServerState string

// The states of a server. A heartbeat has only [ServerRunning] and [ServerDraining].
const (
	ServerNew      ServerState = "new"      // Run has not been called
	ServerStarting ServerState = "starting" // Run waits for Redis to answer
	ServerRunning  ServerState = "running"
	ServerDraining ServerState = "draining" // its running handlers continue up to its Drain
	ServerStopped  ServerState = "stopped"  // Run has returned, or returned an error at once
)

// TopicStatus describes what a server does for one topic.
type TopicStatus struct {
	Workers int // its Concurrency; in a pool, the most workers that the topic can have
	Running int // number of running handlers; a batch is one
	// BatchSize is that of a handler of [Server.HandleBatch], else 0.
	BatchSize int
	// Found reports that the server serves the topic because a pattern matches it: see
	// [Server.Handle]. It stops serving the topic when [Client.RemoveTopic] has removed it.
	Found   bool
	Longest []RunningJob

	// Pool is the [Pool] whose workers the topic shares with others of the server, PoolSize the
	// number of these workers, and Weight that of the topic. Of the pool's workers, as many are
	// busy as handlers of all its topics run. They are empty for a topic without a pool.
	Pool     string
	PoolSize int
	Weight   int

	// Defaults are the values for jobs that do not set them. They are nil if the server is of a
	// release that does not tell them.
	Defaults *HandlerDefaults

	// Taken is the number of jobs that the server took during Within, which ends at the heartbeat
	// and is a minute or shorter. Both are zero in the first heartbeat, and in those of releases
	// that do not count.
	Taken  int64
	Within time.Duration

	// Loops holds the time since the last iteration of each loop. In a healthy server it is below
	// the tick for promote, below 4 s (a blocking pop) for take, and below a third of the lease for
	// extend.
	Loops map[string]time.Duration
}

// capacity returns how many jobs the server can run at a time.
func (s TopicStatus) capacity() int { return s.Workers * max(1, s.BatchSize) }

// A RunningJob says how long a job has been running, by the server's clock.
type RunningJob struct {
	ID      string
	Running time.Duration
}

// readServers returns what all servers of a prefix say of themselves, by ID.
func readServers(ctx context.Context, rdb redis.Cmdable, prefix string) ([]ServerInfo, error) {
	found, err := script.Heartbeats(ctx, rdb, prefix)
	return serverInfos(found), err
}

// allServers is readServers with the first call of its scan.
func allServers(ctx context.Context, rdb redis.Cmdable, prefix string, page *redis.ScanCmd) ([]ServerInfo, error) {
	found, err := script.RestOfHeartbeats(ctx, rdb, prefix, page)
	return serverInfos(found), err
}

// serverInfos returns what heartbeats say, by ID.
func serverInfos(found map[string]string) []ServerInfo {
	if found == nil {
		return nil
	}
	list := make([]ServerInfo, 0, len(found))
	for id, text := range found {
		list = append(list, serverInfo(id, text))
	}
	slices.SortFunc(list, func(a, b ServerInfo) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// serverInfo returns what a heartbeat says.
func serverInfo(id, heartbeat string) ServerInfo {
	h, at := record.DecodeHeartbeat(heartbeat)
	info := ServerInfo{
		ID: id, SeenAt: orZero(at), Host: h.Host, PID: h.PID, StartedAt: h.Started, Version: h.Version, State: ServerState(h.State),
	}
	info.Topics = make(map[string]TopicStatus, len(h.Topics))
	for topic, does := range h.Topics {
		status := TopicStatus{
			Workers: does.Workers, BatchSize: does.Batch, Found: does.Found, Running: does.Running, Loops: does.Loops, Taken: does.Taken, Within: does.Within,
			Pool: does.Pool, PoolSize: does.Size, Weight: does.Weight,
		}
		if d := does.Defaults; d != nil {
			status.Defaults = &HandlerDefaults{d.Retry, d.BackoffMin, d.BackoffMax, d.Timeout, d.Retention}
		}
		for _, job := range does.Longest {
			status.Longest = append(status.Longest, RunningJob{ID: job.ID, Running: job.Running})
		}
		info.Topics[topic] = status
	}
	return info
}

// RedisInfo describes the Redis of a queue. Of a Cluster it describes one node, the one that holds
// the list of topics.
type RedisInfo struct {
	Version string
	Mode    string // standalone or cluster
	Role    string // master or slave
	// Replicas is how many replicas are connected to this Redis.
	Replicas int
	// Clients is how many connections are open, without those of replicas.
	Clients int

	UsedMemory int64 // bytes
	MaxMemory  int64 // bytes; 0: no limit
	// Eviction is the maxmemory-policy. A queue needs noeviction.
	Eviction string

	AOF   bool   // it keeps an append-only file
	FSync string // when that file is synced: always, everysec or no
	// Snapshots is the rule of the snapshots (RDB), as in "3600 1 300 100". Empty: none are taken.
	Snapshots string
	// LastSnapshot is when the last snapshot was taken, or when Redis started, if it has taken none
	// since.
	LastSnapshot time.Time

	Time      time.Time     // by Redis's clock
	RoundTrip time.Duration // of one small call

	// Missing names the fields above that Redis did not tell, because the user has no right to
	// INFO, CONFIG GET or TIME, or because this server has no such value. These fields are zero.
	// The names are sorted.
	Missing []string
}

// infoFields holds how each field of a RedisInfo is read from a line of INFO.
var infoFields = []struct {
	field, name string
	read        func(i *RedisInfo, value string) error
}{
	{"Version", "redis_version", func(i *RedisInfo, v string) error { i.Version = v; return nil }},
	{"Mode", "redis_mode", func(i *RedisInfo, v string) error { i.Mode = v; return nil }},
	{"Role", "role", func(i *RedisInfo, v string) error { i.Role = v; return nil }},
	{"Replicas", "connected_slaves", func(i *RedisInfo, v string) (err error) {
		i.Replicas, err = strconv.Atoi(v)
		return err
	}},
	{"Clients", "connected_clients", func(i *RedisInfo, v string) (err error) {
		i.Clients, err = strconv.Atoi(v)
		return err
	}},
	{"UsedMemory", "used_memory", func(i *RedisInfo, v string) (err error) {
		i.UsedMemory, err = strconv.ParseInt(v, 10, 64)
		return err
	}},
	{"MaxMemory", "maxmemory", func(i *RedisInfo, v string) (err error) {
		i.MaxMemory, err = strconv.ParseInt(v, 10, 64)
		return err
	}},
	{"Eviction", "maxmemory_policy", func(i *RedisInfo, v string) error { i.Eviction = v; return nil }},
	{"AOF", "aof_enabled", func(i *RedisInfo, v string) error { i.AOF = v == "1"; return nil }},
	{"LastSnapshot", "rdb_last_save_time", func(i *RedisInfo, v string) error {
		seconds, err := strconv.ParseInt(v, 10, 64)
		if seconds > 0 {
			i.LastSnapshot = time.Unix(seconds, 0)
		}
		return err
	}},
}

// Redis describes the Redis of the queue. What Redis refuses to tell, or does not know, is zero and
// named in Missing; that is no error. Redis returns an error if there is no connection, if Redis
// does not answer, or if it rejects the password.
//
// Cost: INFO and CONFIG GET in one round trip, and TIME in another, which is measured.
func (i *Inspector) Redis(ctx context.Context) (*RedisInfo, error) {
	if err := i.usable(ctx); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	node, err := i.node(ctx, script.TopicsKey(i.o.prefix))
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	info := new(RedisInfo)
	told := redis.NewStringCmd(ctx, "info")
	fsync := redis.NewMapStringStringCmd(ctx, "config", "get", "appendfsync")
	save := redis.NewMapStringStringCmd(ctx, "config", "get", "save")
	script.Pipeline(ctx, node, []redis.Cmder{told, fsync, save})
	began := time.Now()
	now := node.Time(ctx)
	info.RoundTrip = time.Since(began)
	for _, cmd := range []redis.Cmder{told, fsync, save, now} {
		if err := cmd.Err(); err != nil && script.Away(err) {
			return nil, fmt.Errorf("redis: %w", err)
		}
	}
	lines := script.ParseInfo(told.Val())
	for _, f := range infoFields {
		if value, ok := lines[f.name]; !ok || f.read(info, value) != nil {
			info.Missing = append(info.Missing, f.field)
		}
	}
	setting := func(field, name string, cmd *redis.MapStringStringCmd, to *string) {
		value, ok := cmd.Val()[name]
		if *to = value; !ok {
			info.Missing = append(info.Missing, field)
		}
	}
	setting("FSync", "appendfsync", fsync, &info.FSync)
	setting("Snapshots", "save", save, &info.Snapshots)
	if info.Time = now.Val(); now.Err() != nil {
		info.RoundTrip = 0
		info.Missing = append(info.Missing, "RoundTrip", "Time")
	}
	slices.Sort(info.Missing)
	return info, nil
}

// node returns the Redis itself, or the node of a Cluster that holds a key.
func (i *Inspector) node(ctx context.Context, key string) (*redis.Client, error) {
	switch rdb := i.rdb.(type) {
	case *redis.Client:
		return rdb, nil
	case *redis.ClusterClient:
		return script.NodesOf(rdb)(ctx, key)
	}
	return nil, script.ErrReply // NewInspector accepts no other
}
