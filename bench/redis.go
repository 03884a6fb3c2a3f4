package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/redistest"
)

// store is the Redis that both peers are measured on.
type store struct {
	// opt is how the clients under test connect; its Dialer counts.
	opt redis.Options
	// traffic is what the clients under test have sent and received.
	traffic traffic
	// admin looks at the server and empties it. It is not counted.
	admin *redis.Client
	// ours says that the server is one that we started, on this machine.
	ours bool
	// db is the database beside it that is measured too; nil if there is none.
	db *postgres
	// pool is how many connections every client under test may open; 0 leaves
	// it to the peer.
	pool int
	// stop ends a server of our own and removes its directory.
	stop func() error
}

// adminTimeout is how long Redis may take to answer the admin client: throwing
// millions of jobs away takes it seconds.
const adminTimeout = 2 * time.Minute

// openStore connects to the Redis at url, or starts a redis-server with these
// arguments when url is empty. The Redis must hold no key at all, because it
// is emptied all the time.
func openStore(ctx context.Context, url string, args ...string) (*store, error) {
	s := &store{stop: func() error { return nil }}
	if url == "" {
		if err := s.startServer(args); err != nil {
			return nil, err
		}
	} else {
		opt, err := redis.ParseURL(url)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", redisURL, err)
		}
		s.opt = *opt
	}
	admin := s.opt
	admin.ReadTimeout = adminTimeout
	s.admin = redis.NewClient(&admin)
	s.opt.Dialer = s.traffic.dial(redis.NewDialer(&s.opt))
	if err := s.ready(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// startServer starts a redis-server on a free port, without persistence unless
// args ask for it. All else is as Redis has it by default.
func (s *store) startServer(args []string) error {
	server, err := redistest.StartE("", append([]string{"--loglevel", "warning"}, args...)...)
	if err != nil {
		return err
	}
	s.opt, s.ours, s.stop = *server.Options(), true, server.Close
	return nil
}

// ready waits until Redis answers, and refuses one that holds data.
func (s *store) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := s.admin.Ping(ctx).Err()
		if err == nil {
			break
		}
		if waitErr := sleep(ctx, 20*time.Millisecond); waitErr != nil {
			return fmt.Errorf("redis does not answer: %w", err)
		}
	}
	info, err := s.info(ctx, "keyspace")
	if err != nil {
		return err
	}
	if len(info) > 0 {
		return fmt.Errorf("the Redis at %s holds keys: the benchmark empties its Redis, so it wants an empty one", redisURL)
	}
	return nil
}

// close ends the admin client and a server of our own.
func (s *store) close() error {
	return errors.Join(s.admin.Close(), s.stop())
}

// client opens a counted client with up to pool connections; 0 leaves the
// number to go-redis.
func (s *store) client(pool int) *redis.Client {
	opt := s.opt
	opt.PoolSize = cmp.Or(s.pool, pool, opt.PoolSize)
	return redis.NewClient(&opt)
}

// serverName is how the connections of servers under test are called in Redis.
const serverName = "bench-server"

// serverClient opens a counted client for a server, which Redis can tell from
// others.
func (s *store) serverClient(pool int) *redis.Client {
	opt := s.opt
	opt.PoolSize = cmp.Or(s.pool, pool, opt.PoolSize)
	opt.ClientName = serverName
	return redis.NewClient(&opt)
}

// through is the same Redis for clients that are far away, with pool
// connections each. The admin client stays near.
func (s *store) through(way *distance, pool int) *store {
	t := &store{opt: s.opt, admin: s.admin, ours: s.ours, pool: pool, stop: s.stop}
	t.opt.Dialer = t.traffic.dial(way.dial(redis.NewDialer(&t.opt)))
	return t
}

// flush removes every key. Loaded scripts stay.
func (s *store) flush(ctx context.Context) error {
	if err := s.admin.Do(ctx, "FLUSHALL", "SYNC").Err(); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	return nil
}

// info reads sections of INFO as field → value.
func (s *store) info(ctx context.Context, sections ...string) (map[string]string, error) {
	text, err := s.admin.Info(ctx, sections...).Result()
	if err != nil {
		return nil, fmt.Errorf("read info: %w", err)
	}
	return parseInfo(text), nil
}

// parseInfo splits the text of INFO into field → value.
func parseInfo(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if field, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && !strings.HasPrefix(line, "#") {
			fields[field] = value
		}
	}
	return fields
}

// cpu is the processor time the Redis process has used so far, of all its
// threads, in user space and in the kernel.
func (s *store) cpu(ctx context.Context) (time.Duration, error) {
	info, err := s.info(ctx, "cpu")
	if err != nil {
		return 0, err
	}
	var total float64
	for _, field := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(info[field], 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", field, err)
		}
		total += seconds
	}
	return time.Duration(total * float64(time.Second)), nil
}

// memory is what the data costs Redis in bytes: all used memory without the
// buffers of connected clients. Redis grows its tables in the background, and
// while it does it holds two of them, so the figure is read until it rests.
func (s *store) memory(ctx context.Context) (int64, error) {
	const pause, most = 250 * time.Millisecond, 40
	var last int64 = -1
	for range most {
		info, err := s.info(ctx, "memory")
		if err != nil {
			return 0, err
		}
		used, err := strconv.ParseInt(info["used_memory"], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read used_memory: %w", err)
		}
		clients, err := strconv.ParseInt(info["mem_clients_normal"], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read mem_clients_normal: %w", err)
		}
		now := used - clients
		if diff := now - last; last >= 0 && diff < 1<<14 && diff > -1<<14 {
			return now, nil
		}
		last = now
		if err := sleep(ctx, pause); err != nil {
			return 0, err
		}
	}
	return last, nil
}

// sleep waits for d or until ctx is done.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
