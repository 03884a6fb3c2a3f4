package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// MasterName is the name under which Sentinels watch the master.
const MasterName = "delayq"

// downAfter is the silence after which a Sentinel counts a server as failed.
const downAfter = time.Second

// quick lets a Sentinel check its servers more often than once in one, two or ten seconds, and
// continue quickly when it was stalled on a busy machine. In milliseconds.
var quick = []any{
	"SENTINEL", "DEBUG", "publish-period", 200, "info-period", 500, "ping-period", 200, "ask-period", 200, "tilt-period", 1000,
}

// Replica starts a replica of a server that ends with the test, and waits until it is in sync.
//
// The arguments are added as in Start. After a Restart it is a replica of the same server again.
func Replica(t testing.TB, of *Server, args ...string) *Server {
	t.Helper()
	s := Start(t, append([]string{"--replicaof", "127.0.0.1", strconv.Itoa(of.port)}, args...)...)
	if err := poll(startLimit, s.inStep); err != nil {
		t.Fatal(err)
	}
	return s
}

// inStep returns nil if the server is a replica that follows its master.
func (s *Server) inStep() error {
	return s.ask(func(ctx context.Context, rdb *redis.Client) error {
		info, err := rdb.Info(ctx, "replication").Result()
		if err == nil && field(info, "master_link_status") != "up" {
			err = fmt.Errorf("redis-server %s does not follow its master: %q", s.Addr(), info)
		}
		return err
	})
}

// Sentinels starts n Sentinels for a master, which end with the test, and returns their addresses.
//
// It waits until they know each other and the replicas that the master has at that time, so start
// the replicas first. The name of the master is MasterName and the quorum is the majority. A server
// counts as failed after one second of silence; a failover follows a few seconds later.
func Sentinels(t testing.TB, master *Server, n int) []string {
	t.Helper()
	Need(t)
	var addrs []string
	var sentinels []*Server
	for range n {
		s, err := start(t.TempDir(), func(port int, dir string) ([]string, error) {
			return sentinelArgs(port, dir, master.port, n/2+1)
		})
		if err != nil {
			t.Fatal(err)
		}
		s.until(t)
		// Best effort: before Redis 7 the command is unknown, and a failover takes some seconds
		// longer.
		_ = s.ask(func(ctx context.Context, rdb *redis.Client) error { return rdb.Do(ctx, quick...).Err() })
		sentinels = append(sentinels, s)
		addrs = append(addrs, s.Addr())
	}
	var replicas string
	err := master.ask(func(ctx context.Context, rdb *redis.Client) error {
		info, err := rdb.Info(ctx, "replication").Result()
		replicas = field(info, "connected_slaves")
		return err
	})
	for _, s := range sentinels {
		err = errors.Join(err, poll(startLimit, func() error { return s.watches(n-1, replicas) }))
	}
	if err != nil {
		t.Fatal(err)
	}
	return addrs
}

// sentinelArgs writes the file that a Sentinel needs, because it stores its state there.
func sentinelArgs(port int, dir string, master, quorum int) ([]string, error) {
	path := filepath.Join(dir, "sentinel.conf")
	config := fmt.Sprintf(`bind 127.0.0.1
port %[1]d
dir "%[2]s"
sentinel monitor %[3]s 127.0.0.1 %[4]d %[5]d
sentinel down-after-milliseconds %[3]s %[6]d
sentinel failover-timeout %[3]s %[7]d
`, port, dir, MasterName, master, quorum, downAfter.Milliseconds(), 5*downAfter.Milliseconds())
	return []string{path, "--sentinel"}, os.WriteFile(path, []byte(config), 0o600)
}

// watches returns nil if a Sentinel sees the master with that many other Sentinels and replicas.
func (s *Server) watches(others int, replicas string) error {
	return s.ask(func(ctx context.Context, _ *redis.Client) error {
		sentinel := redis.NewSentinelClient(s.Options())
		defer func() { _ = sentinel.Close() }()
		state, err := sentinel.Master(ctx, MasterName).Result()
		if err == nil && (state["flags"] != "master" || state["num-other-sentinels"] != strconv.Itoa(others) || state["num-slaves"] != replicas) {
			err = fmt.Errorf("sentinel %s does not see all: %v", s.Addr(), state)
		}
		return err
	})
}

// ask runs a question with a client that gives up soon.
func (s *Server) ask(question func(ctx context.Context, rdb *redis.Client) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	opt := s.Options()
	opt.MaxRetries = -1
	rdb := redis.NewClient(opt)
	defer func() { _ = rdb.Close() }()
	return question(ctx, rdb)
}

// field returns the value of a "name:value" line of a reply of INFO or CLUSTER INFO.
func field(info, name string) string {
	for lines := bufio.NewScanner(strings.NewReader(info)); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+":"); ok {
			return value
		}
	}
	return ""
}
