package delayq

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

const (
	heartbeatEvery = 5 * time.Second
	heartbeatStale = 30 * time.Second // after this time without a heartbeat a server is gone
	sweepEvery     = 60 * time.Second // how often a server deletes the entries of gone servers
	longestRuns    = 3                // most jobs in TopicStatus.Longest
	farewellTime   = 200 * time.Millisecond
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

// heartbeatLoop sends a heartbeat every five seconds and as soon as the drain begins. It also
// deletes the entries of servers that are gone, and closes connections that are no longer needed.
func (s *Server) heartbeatLoop(ctx, fetch context.Context) {
	watch := trouble{name: "heartbeat", log: s.log, outage: s.outage}
	about := record.Heartbeat{PID: os.Getpid(), Started: s.started, Version: version()}
	about.Host, _ = os.Hostname() // if it is unknown, the PID must do
	swept, restored, known, lost := time.Now(), time.Now(), false, false
	draining := fetch.Done()
	for {
		about.State = string(ServerRunning)
		if fetch.Err() != nil {
			about.State, draining = string(ServerDraining), nil
		}
		now, gone, err := s.heartbeat(ctx, about)
		lost = lost || err == nil && gone && known
		known = known || err == nil
		if err == nil && (lost || time.Since(restored) >= sweepEvery) {
			// If Redis does not answer, the next heartbeat tries again.
			if err = s.restore(ctx, lost); err == nil || !script.Away(err) {
				restored, lost = time.Now(), false
			} else {
				err = nil
			}
		}
		if err == nil && time.Since(swept) >= sweepEvery {
			err = s.sweep(ctx, now)
			swept = time.Now()
		}
		if ctx.Err() == nil {
			watch.note("heartbeat", err)
		}
		s.trim()
		loop.SignOf(ctx).Rest(heartbeatEvery)
		beat := time.NewTimer(heartbeatEvery)
		select {
		case <-beat.C:
		case <-draining: // so that operators see it immediately
			beat.Stop()
		case <-ctx.Done():
			beat.Stop()
			return
		}
		loop.SignOf(ctx).Turn()
	}
}

// heartbeat executes the heartbeat script. It returns Redis's time and reports whether Redis had
// no entry of the server.
func (s *Server) heartbeat(ctx context.Context, about record.Heartbeat) (now int64, gone bool, err error) {
	about.Topics = make(map[string]record.HeartbeatTopic, s.topics.len())
	for _, t := range s.topics.all() {
		about.Topics[t.keys.Topic] = t.status(time.Now())
	}
	text, err := about.Encode()
	if err != nil {
		return 0, false, fmt.Errorf("heartbeat: %w", err)
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := s.scripts.Call(call, script.Heartbeat, "", 0, []any{script.ServersKey(s.o.prefix)}, s.id, text)
	return r.Now(), r.Number(2) == 1, err
}

// farewell deletes the heartbeat of a server that stops. It first waits for the reply to the last
// heartbeat, which could otherwise arrive after the deletion. If Redis does not answer
// immediately, the entry remains until it is stale.
func (s *Server) farewell(beaten <-chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), farewellTime)
	defer cancel()
	select {
	case <-beaten:
	case <-ctx.Done():
	}
	if err := s.calls.HDel(ctx, script.ServersKey(s.o.prefix), s.id).Err(); err != nil {
		s.log.Warn("heartbeat not deleted", "err", err)
	}
}

// sweep deletes stale heartbeats.
func (s *Server) sweep(ctx context.Context, now int64) error {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	all, err := readServers(call, s.calls, s.o.prefix)
	for _, info := range all {
		if err == nil && msTime(now).Sub(info.SeenAt) > heartbeatStale {
			err = s.calls.HDel(call, script.ServersKey(s.o.prefix), info.ID).Err()
		}
	}
	return err
}

// status describes what the server does for the topic.
func (t *topicServer) status(now time.Time) record.HeartbeatTopic {
	t.mu.Lock()
	defer t.mu.Unlock()
	info := record.HeartbeatTopic{Workers: t.workers.count, Batch: t.workers.perCall, Running: t.workers.busy, Loops: t.turns.ages(now)}
	if m := t.workers.member; m != nil {
		info.Pool, info.Size, info.Weight = m.pool.name, m.pool.size, m.weight
	}
	info.Taken, info.Within = t.pace.mark(now, t.owned.added)
	at := t.clock.at(now)
	for r := range t.owned.running {
		info.Longest = append(info.Longest, record.HeartbeatJob{ID: strings.ToValidUTF8(r.id, "\uFFFD"), Running: at.Sub(r.start)})
	}
	slices.SortFunc(info.Longest, func(a, b record.HeartbeatJob) int { return cmp.Compare(b.Running, a.Running) })
	info.Longest = info.Longest[:min(len(info.Longest), longestRuns)]
	return info
}

// serversPage is about how many heartbeats one call of a scan reads.
const serversPage = 100

// readServers reads all heartbeats of a prefix. It uses HSCAN because operators often forbid
// HGETALL.
func readServers(ctx context.Context, rdb redis.Cmdable, prefix string) ([]ServerInfo, error) {
	return allServers(ctx, rdb, prefix, rdb.HScan(ctx, script.ServersKey(prefix), 0, "", serversPage))
}

// allServers is readServers with the first call of its scan.
func allServers(ctx context.Context, rdb redis.Cmdable, prefix string, page *redis.ScanCmd) ([]ServerInfo, error) {
	found := make(map[string]ServerInfo)
	for {
		pairs, next, err := page.Result()
		if err != nil {
			return nil, fmt.Errorf("servers of %q: %w", prefix, err)
		}
		for i := 0; i+1 < len(pairs); i += 2 {
			info := serverInfo(pairs[i], pairs[i+1])
			found[info.ID] = info
		}
		if next == 0 {
			break
		}
		page = rdb.HScan(ctx, script.ServersKey(prefix), next, "", serversPage)
	}
	list := make([]ServerInfo, 0, len(found))
	for _, info := range found {
		list = append(list, info)
	}
	slices.SortFunc(list, func(a, b ServerInfo) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
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

// version returns the version of delayq in the program.
var version = sync.OnceValue(func() string {
	const path = "github.com/delayq/delayq"
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Path == path {
			return info.Main.Version
		}
		for _, m := range info.Deps {
			if m.Path == path {
				return m.Version
			}
		}
	}
	return ""
})

// paceTime is the time over which the pace of a server is computed.
const paceTime = time.Minute

// A pace holds how many jobs a server had taken at the heartbeats of the last minute.
type pace struct{ marks []paceMark }

type paceMark struct {
	at    time.Time
	taken int64
}

// mark adds a number of taken jobs. It returns how many of them were taken since the first mark of
// the last minute, and how long ago that is.
func (p *pace) mark(now time.Time, taken int64) (n int64, within time.Duration) {
	p.marks = slices.DeleteFunc(p.marks, func(m paceMark) bool { return now.Sub(m.at) > paceTime })
	p.marks = append(p.marks, paceMark{now, taken})
	return taken - p.marks[0].taken, now.Sub(p.marks[0].at)
}

// turns holds the time of the last turn of each loop.
type turns struct{ last [turnCount]time.Time }

// The loops of a topic.
const (
	turnPromote = iota
	turnTake
	turnExtend
	turnCount
)

var turnNames = [turnCount]string{turnPromote: "promote", turnTake: "take", turnExtend: "extend"}

func (ts *turns) ages(now time.Time) map[string]time.Duration {
	ages := make(map[string]time.Duration)
	for i, at := range ts.last {
		if !at.IsZero() {
			ages[turnNames[i]] = now.Sub(at)
		}
	}
	return ages
}
