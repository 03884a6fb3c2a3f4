package delayq

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/delayq/delayq/internal/script"
	"github.com/redis/go-redis/v9"
)

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
