package delayq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/link"
	"github.com/delayq/delayq/internal/part"
	"github.com/delayq/delayq/internal/places"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
)

// An Inspector reads what a queue holds. It has no method that writes, starts nothing and need not
// be closed. It is safe for concurrent use. If the inspector or an argument is invalid, every
// method returns an error that wraps [ErrInvalid].
//
// It can read from a replica, and from the replicas of a Cluster if the client is ReadOnly. What it
// reads there can be some milliseconds old, and its times are by the clock of that replica. With
// several replicas, do not use the ReplicaOnly option for Sentinel: each connection goes to any one
// of them, and calls that scan, as Topics does, leave entries out.
//
// It sends its scripts with EVALSHA_RO, so that Redis refuses their writes. If Redis does not know
// that command, as before 7.0, or refuses it to the user, EVALSHA takes its place.
type Inspector struct {
	rdb     redis.UniversalClient
	o       inspectorOptions
	err     error // why the inspector itself is invalid
	scripts script.Caller
}

// An InspectorOption configures an [Inspector]: [Prefix] or [Hooks].
type InspectorOption interface{ applyInspector(*inspectorOptions) }

type inspectorOptions struct {
	prefix string
	hooks  hooks
	errs   []error
}

func (p PrefixOption) applyInspector(o *inspectorOptions) { o.prefix = string(p) }

func (h HooksOption) applyInspector(o *inspectorOptions) {
	o.errs = append(o.errs, o.hooks.add(h, inspectorSide)...)
}

// NewInspector returns an inspector of the queue in rdb: a *redis.Client (of a Sentinel too) or a
// *redis.ClusterClient. The caller owns rdb and closes it. If rdb or an option is invalid, every
// call returns that error. Contexts interrupt a call in flight only if rdb was created with
// ContextTimeoutEnabled; otherwise the timeouts of rdb apply.
func NewInspector(rdb redis.UniversalClient, opts ...InspectorOption) *Inspector {
	i := &Inspector{rdb: rdb, o: inspectorOptions{prefix: script.DefaultPrefix}}
	for _, opt := range opts {
		if opt == nil {
			i.o.errs = append(i.o.errs, errors.New("an inspector option is nil"))
			continue
		}
		opt.applyInspector(&i.o)
	}
	if err := script.CheckName("prefix", i.o.prefix); err != nil {
		i.o.errs = append(i.o.errs, err)
	}
	i.err = errors.Join(invalid(i.o.errs), checkRedis(rdb))
	i.o.hooks.trouble = func(why *contain.Crash) { logHook(contain.DefaultLogger(), why) }
	i.scripts = script.Caller{RDB: rdb, Hooks: &i.o.hooks, Only: new(script.ReadOnly)}
	return i
}

// Prefix returns the prefix of the queue that the inspector reads. See [Prefix].
func (i *Inspector) Prefix() string {
	if i == nil {
		return ""
	}
	return i.o.prefix
}

// usable returns an error if the inspector itself or a context is invalid.
func (i *Inspector) usable(ctx context.Context) error {
	var err error
	switch {
	case i == nil:
		err = fmt.Errorf("%w: nil Inspector", ErrInvalid)
	case i.err != nil:
		err = i.err
	case i.rdb == nil:
		err = fmt.Errorf("%w: zero Inspector: use NewInspector", ErrInvalid)
	}
	return errors.Join(err, checkContext(ctx))
}

// validate joins the complaints about the inspector, a context, a topic and an ID. Every method
// calls it, or usable, before anything else.
func (i *Inspector) validate(ctx context.Context, topic, id string) error {
	return errors.Join(i.usable(ctx), checkNames(topic, id))
}

// scan reads everything about a key in several calls that follow a cursor of SSCAN, HSCAN or ZSCAN.
// If the client reads from the replicas of a Cluster, all of these calls must go to one node: a
// cursor is a place in the hash tables of that node, and with another node it leaves entries out.
// read gets an inspector of that node. If the node is away, read is called again for the master.
func (i *Inspector) scan(ctx context.Context, key string, read func(*Inspector) error) error {
	cluster, ok := i.rdb.(*redis.ClusterClient)
	if !ok || !cluster.Options().ReadOnly {
		return read(i)
	}
	on := func(find script.NodeFinder) error {
		node, err := find(ctx, key)
		if err != nil {
			return err
		}
		one := *i
		one.rdb, one.scripts.RDB = node, node
		return read(&one)
	}
	if i.scripts.Only != nil { // else its scripts go to masters
		if err := on(cluster.SlaveForKey); err == nil || ctx.Err() != nil || !script.Away(err) {
			return err
		}
		link.Reload(cluster)
	}
	return on(cluster.MasterForKey)
}

// Job returns everything that is known about a job, including its payload, as [Client.Get] does. It
// finds done jobs during their [Retention]. Job returns [ErrNotFound] if there is no job with this
// ID. Cost: one call to Redis. If the topic has partitions, there can be two more round trips.
func (i *Inspector) Job(ctx context.Context, topic, id string) (*JobInfo, error) {
	err := i.validate(ctx, topic, id)
	var info *JobInfo
	if err == nil {
		info, err = i.job(ctx, script.NewKeys(i.o.prefix, topic), id)
	}
	if err != nil {
		return nil, script.Place{Call: commit.Get.Name, Topic: topic, Job: id}.At(err)
	}
	return info, nil
}

// topicsPage is the number of topics that one call of a scan reads, about.
const topicsPage = 1000

// Topics returns the topics that jobs were enqueued to or that a server has handled, sorted. Cost:
// one call to Redis for about 1,000 topics.
func (i *Inspector) Topics(ctx context.Context) ([]string, error) {
	if err := i.usable(ctx); err != nil {
		return nil, fmt.Errorf("topics: %w", err)
	}
	var names []string
	key := script.TopicsKey(i.o.prefix)
	err := i.scan(ctx, key, func(i *Inspector) error {
		names = nil
		for cursor := uint64(0); ; {
			some, next, err := i.rdb.SScan(ctx, key, cursor, "", topicsPage).Result()
			if err != nil {
				return i.scripts.Blame(ctx, err, key)
			}
			names = append(names, some...)
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("topics of %q: %w", i.o.prefix, err)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { _, parted := part.IsName(name); return parted }), nil
}

// Servers returns the servers of the prefix that have sent a heartbeat within the last 30 s. Cost:
// one call to Redis for about 100 servers, and one for its time.
func (i *Inspector) Servers(ctx context.Context) ([]ServerInfo, error) {
	if err := i.usable(ctx); err != nil {
		return nil, fmt.Errorf("servers: %w", err)
	}
	list, err := i.servers(ctx)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	now, err := i.rdb.Time(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("servers of %q: %w", i.o.prefix, err)
	}
	return slices.DeleteFunc(list, func(info ServerInfo) bool { return !info.live(now) }), nil
}

// servers reads all heartbeats.
func (i *Inspector) servers(ctx context.Context) (list []ServerInfo, err error) {
	err = i.scan(ctx, script.ServersKey(i.o.prefix), func(i *Inspector) (err error) {
		list, err = readServers(ctx, i.rdb, i.o.prefix)
		return i.scripts.Blame(ctx, err, script.ServersKey(i.o.prefix))
	})
	return list, err
}

// live reports whether the server has sent a heartbeat lately.
func (info *ServerInfo) live(now time.Time) bool { return now.Sub(info.SeenAt) <= serve.HeartbeatStale }

// Find returns the jobs with an ID in all topics, sorted by topic and without payloads. It finds
// done jobs during their [Retention]. An empty result means that there is none. If some topics
// cannot be read, Find returns what it has found in the others along with the error.
//
// Find sends the questions about 1,000 topics in one round trip to each node of a Cluster, and one
// more call for each 100 jobs that are there. Cost: O(1) for each topic.
func (i *Inspector) Find(ctx context.Context, id string) ([]*JobInfo, error) {
	place := script.Place{Call: "find", Job: id}
	err := i.usable(ctx)
	if bad := script.CheckID(id); bad != nil {
		err = errors.Join(err, invalid([]error{bad}))
	}
	if err != nil {
		return nil, place.At(err)
	}
	topics, err := i.Topics(ctx)
	if err != nil {
		return nil, place.At(err)
	}
	var failed topicErrors
	there := make([][]*script.Keys, len(topics))
	errs := i.sumUp(ctx, topics, func(k *script.Keys) []redis.Cmder {
		return []redis.Cmder{redis.NewBoolCmd(ctx, "hexists", k.Pool, id), redis.NewBoolCmd(ctx, "hexists", k.Results, id)}
	}, func(at int, k *script.Keys, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if err := cmd.Err(); err != nil {
				return i.scripts.Blame(ctx, err, k.Pool, k.Results)
			}
		}
		if cmds[0].(*redis.BoolCmd).Val() || cmds[1].(*redis.BoolCmd).Val() {
			there[at] = append(there[at], k)
		}
		return nil
	})
	for at, err := range errs {
		if err != nil {
			failed = append(failed, script.Place{Call: "find", Topic: topics[at], Job: id}.At(err))
		}
	}
	var list []*JobInfo
	for some := range slices.Chunk(slices.Concat(there...), findPage) {
		calls := make([]*script.Call, len(some))
		for at, k := range some {
			calls[at] = script.NewCall(commit.Get.Script, k.Topic, 1, k.Of(commit.Get.Script, ""), []any{script.CallBytes, recordHead, id})
		}
		i.scripts.DoWith(ctx, calls)
		for at, call := range calls {
			if call.Err != nil {
				failed = append(failed, script.Place{Call: "find", Topic: part.HomeOf(call.Topic), Job: id}.At(places.In(some[at], call.Err)))
				continue
			}
			column := func(column int) string { return call.Reply.List(2 + column).Text(0) }
			if info := readJobInfo(call.Topic, id, recordHead, column); info != nil { // it is still there
				list = append(list, info)
			}
		}
	}
	return list, failed.join()
}

// findPage is how many jobs of Find are read in one pipeline.
const findPage = 100

// topicErrors are the errors of several topics.
type topicErrors []error

// mostErrors is how many errors of topics a call joins.
const mostErrors = 10

// join joins the first errors.
func (f topicErrors) join() error {
	if len(f) > mostErrors {
		f = append(slices.Clone(f[:mostErrors]), fmt.Errorf("and %d more errors", len(f)-mostErrors))
	}
	return errors.Join(f...)
}

// Audit returns the newest acts that were recorded because their context had an actor
// ([WithActor]), the latest first. The audit has the newest 1,000 acts of the prefix. Acts that
// this release cannot decode are left out. Range of limit: 1 to 1,000. Cost: one call to Redis,
// O(limit).
func (i *Inspector) Audit(ctx context.Context, limit int) ([]AuditEntry, error) {
	err := i.usable(ctx)
	if limit < 1 || limit > record.MaxActs {
		err = errors.Join(err, fmt.Errorf("%w: limit %d: must be from 1 to %d", ErrInvalid, limit, record.MaxActs))
	}
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	key := script.AuditKey(i.o.prefix)
	acts, err := i.rdb.LRange(ctx, key, 0, int64(limit)-1).Result()
	if err != nil {
		return nil, fmt.Errorf("audit of %q: %w", i.o.prefix, i.scripts.Blame(ctx, err, key))
	}
	list := make([]AuditEntry, 0, len(acts))
	for _, act := range acts {
		if a, ok := record.DecodeAudit(act); ok {
			list = append(list, AuditEntry{
				At: msTime(a.At), Actor: a.Actor, Action: a.Action, Topic: a.Topic, ID: a.ID, Filter: a.Filter, Was: a.Was, Count: a.Count,
			})
		}
	}
	return list, nil
}

// An UndeliveredJob is a job of [Job.Then] that was not enqueued: see [Inspector.Undelivered].
type UndeliveredJob struct {
	At     time.Time // when it was refused
	From   string    // ID of the job whose run has handed it over
	Topic  string    // that has refused it
	ID     string    // of the job that was not enqueued
	Reason string    // at most 500 bytes
}

// Undelivered returns the jobs that runs of the topic have handed over with [Job.Then] and that
// their own topics have refused, the latest first. Redis keeps the newest 100 of a topic until it
// is removed, and neither their payloads nor their options: enqueue such a job again yourself. Of
// an entry that is damaged it returns what can be read. In IDs, what is not UTF-8 is U+FFFD. A job
// that was damaged on its way has only At and Reason.
//
// Errors: [ErrInvalid], the error of the context, or that of Redis. Cost: one call to Redis.
func (i *Inspector) Undelivered(ctx context.Context, topic string) ([]UndeliveredJob, error) {
	place := script.Place{Call: "undelivered", Topic: topic}
	if err := errors.Join(i.usable(ctx), invalidTopic(topic)); err != nil {
		return nil, place.At(err)
	}
	var list []UndeliveredJob
	asked := 0
	errs := i.sumUp(ctx, []string{topic}, func(k *script.Keys) []redis.Cmder {
		return []redis.Cmder{redis.NewStringSliceCmd(ctx, "lrange", k.Undelivered, 0, serve.MostUndelivered-1)}
	}, func(_ int, k *script.Keys, cmds []redis.Cmder) error {
		entries, err := cmds[0].(*redis.StringSliceCmd).Result()
		for _, entry := range entries {
			u := serve.DecodeUndelivered(entry)
			list = append(list, UndeliveredJob{orZero(u.At), u.From, u.Topic, u.ID, u.Reason})
		}
		asked++
		return i.scripts.Blame(ctx, err, k.Undelivered)
	})
	if errs != nil {
		return nil, place.At(errs[0])
	}
	if asked > 1 { // each place has its own
		slices.SortStableFunc(list, func(a, b UndeliveredJob) int { return b.At.Compare(a.At) })
	}
	return list[:min(len(list), serve.MostUndelivered)], nil
}

// Scripts returns the name and the SHA-1 digest of every script that delayq executes, as SLOWLOG
// and MONITOR show them.
func Scripts() map[string]string { return script.Digests() }

// A KeyInfo describes one key and its ready jobs: see [Key]. [Inspector.Keys] and [Inspector.Key]
// return it.
type KeyInfo struct {
	Key     string
	Waiting int64  // ready jobs of the key
	Weight  int    // its share of the starts, relative to the other keys
	First   string // the ID of the job that is the next one of the key to start; empty: it has none
	// Paused reports whether the key is paused: see [Client.PauseKey].
	Paused bool
	// HeldUntil is the end of its hold, by Redis's clock: see [HoldKey]. It is zero if the key is
	// not held, or is paused.
	HeldUntil time.Time
	// Running is the number of its running jobs, if a limit of running jobs is in force for it.
	// Otherwise it is 0. Jobs that have just ended can be among them.
	Running int64
	// LimitedUntil is when the key gets a turn again, because one of its limits is reached, by
	// Redis's clock. With a limit of running jobs, it gets one as soon as one of them ends. It is
	// zero if none of its jobs waits for a limit.
	LimitedUntil time.Time
	// Blocker is the ID of a job that has failed or is dead, and that the jobs after it wait for:
	// see Ordered and OnDead in [Limits]. It is empty if there is none.
	Blocker string
	// BlockedUntil is the due time of that job. It is zero if there is none, or if it is dead.
	BlockedUntil time.Time
	// Limits are those of the key itself. Those that are zero are those of the topic.
	Limits KeyLimits
}

// maxKeys is the most keys that one call of Keys returns.
const maxKeys = 1000

// Keys returns the keys of a topic that have ready jobs: see [Key]. They are sorted by their length
// and then by their bytes. after is the last key of the page before, empty for the first page. A
// page with fewer than limit keys is the last one. Range of limit: 1 to 1,000.
//
// A key that has ready jobs throughout is on exactly one of the pages. Jobs whose places in lane
// have been lost are missing: see [Inspector.Check].
//
// Errors: [ErrInvalid], the error of the context, or that of Redis. Cost: one call to Redis,
// O(limit × log N) with N ready jobs. If the topic has partitions, one more round trip reads them.
func (i *Inspector) Keys(ctx context.Context, topic, after string, limit int) ([]KeyInfo, error) {
	place := script.Place{Call: "keys", Topic: topic}
	var bad []error
	if limit < 1 || limit > maxKeys {
		bad = append(bad, fmt.Errorf("limit %d: must be from 1 to %d", limit, maxKeys))
	}
	if len(after) > script.MaxTopicLen {
		bad = append(bad, fmt.Errorf("key of %d bytes, at most %d are allowed", len(after), script.MaxTopicLen))
	}
	if err := errors.Join(i.validate(ctx, topic, ""), invalid(bad)); err != nil {
		return nil, place.At(err)
	}
	list, err := i.keysOf(ctx, topic, after, limit)
	if err != nil {
		return nil, place.At(err)
	}
	return list, nil
}

// Key returns what is known of one key of a topic, whether it has ready jobs or not: see [Key].
//
// Errors: [ErrInvalid], the error of the context, or that of Redis. Cost: one call to Redis,
// O(log N) with N ready jobs.
func (i *Inspector) Key(ctx context.Context, topic, key string) (*KeyInfo, error) {
	place := script.Place{Call: "key", Topic: topic}
	if err := errors.Join(i.validate(ctx, topic, ""), invalid(checkKey(key))); err != nil {
		return nil, place.At(err)
	}
	list, err := i.keysOf(ctx, topic, key, 0)
	if err != nil {
		return nil, place.At(err)
	}
	if len(list) != 1 {
		return nil, place.At(fmt.Errorf("keys: %w", script.ErrReply))
	}
	return &list[0], nil
}

// keysOf returns what is known of keys.
func (i *Inspector) keysOf(ctx context.Context, topic, after string, limit int) ([]KeyInfo, error) {
	found, err := places.Keys(ctx, i.scripts, i.o.prefix, topic, after, limit)
	list := make([]KeyInfo, len(found))
	for at, k := range found {
		one := KeyInfo{Key: k.Name, Waiting: k.Waiting, First: k.First, Limits: decodeKeyLimits(k.Rule), Running: k.Running, Blocker: k.Blocker}
		one.Weight = max(1, one.Limits.Weight)
		if k.Waiting > 0 {
			_, one.LimitedUntil = keyHold(k.Parked)
		}
		_, one.BlockedUntil = keyHold(k.Blocked)
		one.Paused, one.HeldUntil = keyHold(k.Held)
		list[at] = one
	}
	return list, err
}

// keyPaused is the end of the hold of a paused key.
const keyPaused = 9_999_999_999_999

// keyHold reads the score of a key in held, empty if it is not held.
func keyHold(score string) (paused bool, until time.Time) {
	switch ms, err := strconv.ParseFloat(score, 64); {
	case err != nil || !(ms >= 0):
	case ms >= keyPaused:
		paused = true
	default:
		until = msTime(int64(ms))
	}
	return paused, until
}
