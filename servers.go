package delayq

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

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
	Longest   []RunningJob

	// Pool is the [Pool] whose workers the topic shares with others of the server, PoolSize the
	// number of these workers, and Weight that of the topic. Of the pool's workers, as many are
	// busy as handlers of all its topics run. They are empty for a topic without a pool.
	Pool     string
	PoolSize int
	Weight   int

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
			Workers: does.Workers, BatchSize: does.Batch, Running: does.Running, Loops: does.Loops, Taken: does.Taken, Within: does.Within,
			Pool: does.Pool, PoolSize: does.Size, Weight: does.Weight,
		}
		for _, job := range does.Longest {
			status.Longest = append(status.Longest, RunningJob{ID: job.ID, Running: job.Running})
		}
		info.Topics[topic] = status
	}
	return info
}
