package delayq

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/doctor"
	"github.com/delayq/delayq/internal/places"
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

// A RunningJob says how long a job has been running, by the server's clock.
type RunningJob struct {
	ID      string
	Running time.Duration
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

// A FindingKind is the kind of a [Finding].
type FindingKind string

// The kinds of findings of [Inspector.Check] and [Client.Repair]. Names in lower case, such as
// bucket, are keys in docs/protocol.md. The place of a job is the one of ready, bucket, leases and
// dead that holds its ID.
const (
	// FindingNoPlace is a job that would never run: it has a record, but its ID is neither in ready
	// nor in bucket, leases or dead. Repair: it goes back to the place that its record, its
	// attempts and its errors indicate.
	FindingNoPlace FindingKind = "no_place"

	// FindingNoRecord is an ID without a record. Repair: removed, since there is nothing to run. An
	// ID in leases is left alone, because it belongs to a running handler and is removed when that
	// handler returns.
	FindingNoRecord FindingKind = "no_record"

	// FindingTwoPlaces is a job in two places. Repair: a dead job is removed from bucket. If the
	// job was enqueued after the burial, an earlier job with its ID was buried, and the ID is
	// removed from dead instead. A leased job is left alone: the other place counts when the lease
	// is over.
	FindingTwoPlaces FindingKind = "two_places"

	// FindingOrphan is an entry in attempts, errors, moved or results without a job. Repair:
	// removed.
	FindingOrphan FindingKind = "orphan"

	// FindingUnreadable is a malformed entry in attempts or moved. Repair: removed, as if there had
	// been no entry. For a schedule it is a state in the key fired that is malformed or belongs to
	// another definition. Repair: the readable parts are kept. For a job it can be its note, in the
	// key all:notes. Repair: malformed progress is removed. If the names of its steps cannot be
	// read, the note is left alone: [Step] fails in each run of the job, until somebody deletes the
	// job or its note. In the key all:parcels it is a job of [Job.Then] whose entry is malformed,
	// and the ID is the start of the entry. It is left alone: a server of the topic drops it.
	FindingUnreadable FindingKind = "unreadable"

	// FindingBadTime is an impossible time: one of more than 13 digits, or a slot that is negative
	// or not a whole number. Repair: the due time is computed again; a lease expires now; a dead
	// job counts as buried now; a done job is no longer kept; a schedule continues with the first
	// slot from now on.
	FindingBadTime FindingKind = "bad_time"

	// FindingNoSlot is a schedule that would never fire again: it is neither paused nor ended, but
	// has no next slot. Repair: a server computes the first slot from now on. Slots in between
	// have neither a job nor a count.
	FindingNoSlot FindingKind = "no_slot"

	// FindingNoState is a schedule without its state. Repair: it gets a new one, as if nothing had
	// been fired. If it was paused or had ended, it continues.
	FindingNoState FindingKind = "no_state"

	// FindingNoHistory is a schedule without the history of its runs. Repair: it gets an empty
	// one.
	FindingNoHistory FindingKind = "no_history"

	// FindingNoSchedule is an entry of a schedule without a definition. Repair: removed.
	FindingNoSchedule FindingKind = "no_schedule"

	// FindingWrongType is a key of a wrong type. The ID is empty. There is no repair, because the
	// contents are unknown. Checks that need this key are skipped; all others are made.
	FindingWrongType FindingKind = "wrong_type"

	// FindingNoLane is a job with a key whose place in its lane is not known: keyed has no entry of
	// it, or that of a former job with its ID or of another key. Repair: it has the place that lane
	// has of it, or a new one.
	FindingNoLane FindingKind = "no_lane"

	// FindingNoTurn is a key whose jobs wait, and which gets no turn. The ID is the key. Repair: it
	// is the next one.
	FindingNoTurn FindingKind = "no_turn"

	// FindingNoBlock is a job that has failed in a topic with Ordered [Limits], and that its key
	// does not wait for. Repair: it does.
	FindingNoBlock FindingKind = "no_block"

	// FindingLoneAnchor is the anchor, a member that accompanies the leases of a topic, without any
	// lease. Repair: removed.
	FindingLoneAnchor FindingKind = "lone_anchor"

	// FindingUndelivered is a topic to which jobs of [Job.Then] have not been passed on for more
	// than a minute. The ID is that topic. [Server.Health] and the log of the servers have the
	// error. There is no repair: servers try again until they succeed.
	FindingUndelivered FindingKind = "undelivered"

	// FindingNotServed is a topic with partitions that no live server serves: see
	// [Client.Partition]. There is no repair.
	FindingNotServed FindingKind = "partition_not_served"

	// FindingNotClosed is a partition of an earlier [Client.Partition], or the topic itself, that
	// still takes new jobs: the call was cut off a moment ago, or a failover has opened it. Repair:
	// closed. Servers of the topic do that too.
	FindingNotClosed FindingKind = "partition_not_closed"

	// FindingMapLost is a topic whose latest partitions take no new jobs: Redis has lost those of a
	// later call. Servers of the topic that know them restore them. If none does, call
	// [Client.Partition] again.
	FindingMapLost FindingKind = "map_lost"

	// FindingStrayHome is an unfinished job in the topic itself that no schedule has made, long
	// after the topic was divided: a client of a release without partitions has stored it. It runs,
	// but its ID is not compared with those in partitions. There is no repair.
	FindingStrayHome FindingKind = "stray_home_job"
)

// A Finding is one inconsistency that normal operation never produces. Its causes are lost writes,
// evicted keys and manual edits.
type Finding struct {
	Key string // name of the key, as in docs/protocol.md
	// ID is the ID of the job, the name of the schedule or, if Key is turn or rules, the key of
	// jobs. For [FindingUndelivered] it is a topic. It is empty for [FindingLoneAnchor] and
	// [FindingWrongType].
	ID       string
	Kind     FindingKind
	Repaired bool // always false in a report of [Inspector.Check]
	// Partition is the partition that has it. It is zero if the topic itself has it.
	Partition PartitionRef
}

// A CheckReport is the result of [Inspector.Check] or [Client.Repair] for a topic. Findings lists
// the first 1,000. Found and Repaired count all of them.
type CheckReport struct {
	Jobs     int64 // number of records that were examined
	Findings []Finding
	Found    map[FindingKind]int // number of findings of each kind; empty if there are none
	Repaired int                 // number of findings that were repaired
}

// Check scans a live topic for inconsistencies. Normal operation never produces them, but a
// failover with lost writes, an eviction or a manual edit can. Check writes nothing.
// docs/operations.md describes what it can and cannot detect.
//
// Check makes bounded calls, one after another: one to two thousand for each million jobs. It keeps
// eight bytes in memory for each ready job. It is safe for concurrent use.
//
// Of a topic with partitions, Check scans these one after the other, and looks for what is wrong
// with them as a whole: see [FindingNotServed] and the kinds after it.
//
// If Check returns an error, it also returns the report of the part that it has scanned.
func (i *Inspector) Check(ctx context.Context, topic string) (*CheckReport, error) {
	place := script.Place{Call: "check", Topic: topic}
	if err := i.validate(ctx, topic, ""); err != nil {
		return nil, place.At(err)
	}
	report, err := i.examine(ctx, topic, func(k *script.Keys) (r *doctor.Report, err error) {
		err = i.scan(ctx, k.Pool, func(i *Inspector) error {
			d := doctor.New(i.scripts, i.rdb, k, false)
			r = &d.Report
			return d.Check(ctx)
		})
		return r, err
	}, nil)
	return checkReport(report), place.At(err)
}

// Repair does what [Inspector.Check] does, and repairs what it finds. It loses no job, and lets no
// job start before it is due. Servers do the same by themselves.
//
// A job that would never run becomes scheduled, or ready behind all other ready jobs. Jobs found
// together are ordered by due time. A job that was dead is dead again if its attempts or errors
// show it. Repair returns [ErrUnknownOutcome] if Redis did not confirm a repair; it can safely be
// called again.
func (c *Client) Repair(ctx context.Context, topic string) (*CheckReport, error) {
	ctx, end := c.begin(ctx, CallEvent{Name: "repair", Topic: topic})
	place := script.Place{Call: "repair", Topic: topic}
	if err := c.validate(ctx, topic, ""); err != nil {
		return nil, end.err(place.At(err))
	}
	report, err := c.inspector().examine(ctx, topic, func(k *script.Keys) (*doctor.Report, error) {
		d := doctor.New(c.scripts, c.rdb, k, true)
		err := d.Check(ctx)
		return &d.Report, err
	}, func(ctx context.Context, k *script.Keys, keysStay bool) error {
		return c.unsure(commit.ClosePlace(ctx, c.scripts, k, keysStay))
	})
	if err != nil {
		err = place.At(c.unsure(err))
	}
	return checkReport(report), end.err(c.audited(ctx, place, "", "", int64(report.Mended), err))
}

// checkReport returns the report of a doctor.
func checkReport(r *doctor.Report) *CheckReport {
	c := &CheckReport{Jobs: r.Jobs, Found: make(map[FindingKind]int, len(r.Found)), Repaired: r.Mended}
	for _, f := range r.Findings {
		c.Findings = append(c.Findings, Finding{
			Key: f.Key, ID: f.ID, Kind: FindingKind(f.Kind), Repaired: f.Mended, Partition: PartitionRef(places.RefOf(f.Place)),
		})
	}
	for kind, n := range r.Found {
		c.Found[FindingKind(kind)] = n
	}
	return c
}
