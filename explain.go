package delayq

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/explain"
	"github.com/delayq/delayq/internal/places"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
)

// An Explanation says why a job is not running, or that it is. [Inspector.Explain] returns it.
type Explanation struct {
	// Verdict is one sentence in English: the state of the job, the first of Reasons, its
	// partition and those that are closing ([Client.Partition]), its flow, its progress and its
	// last five steps ([Step]), and how many clients wait for it.
	Verdict string
	Job     *JobInfo // without its payload; nil if there is no such job
	// Reasons has every reason that holds, the decisive one first. It is empty if the job has
	// been ready for at most a second, no other is in front of it, and a worker is free.
	Reasons []Reason
	// Settings has the retries, backoff, timeout and retention of the job, and who has set them.
	// What the job leaves to its handler is known from the heartbeats of the live servers of the
	// topic: see [JobInfo.Settings]. It is nil for a job that does not exist or is done.
	Settings []Setting
	Waiters  int       // clients that wait for the job: see [Client.Wait]
	At       time.Time // when the job was read, by Redis's clock
	// Partition is the partition that has the job. It is zero if the topic itself has it.
	Partition PartitionRef
}

// A ReasonCode says what kind of reason a [Reason] is.
type ReasonCode string

// The codes of reasons, each with the fields of a [Reason] that it sets besides Code and Text. A
// field that is zero is unknown.
const (
	// There is no such job: it was never enqueued, has finished, or was cancelled or dropped. By,
	// Action, Since: the newest act in the audit that names the job.
	ReasonNotFound ReasonCode = "not_found"
	// The newest act in the audit that names the job is a cancel, and there is no such job. By,
	// Since.
	ReasonCancelled ReasonCode = "cancelled"
	// There is no such job, and its ID is closed: see [Tombstone] and [UniqueFor]. Until.
	ReasonTomb ReasonCode = "tomb"

	// The job is scheduled and not due yet. Until: when it is due. Stage, Stages: of a plan.
	ReasonDueLater ReasonCode = "due_later"
	// The same after a failed attempt. Until; Stage, Stages; Attempt, Since, Error: the attempt
	// that failed.
	ReasonBackingOff ReasonCode = "backing_off"
	// The same after its handler has snoozed it. Until; Stage, Stages; Snoozes: how often that
	// was.
	ReasonSnoozed ReasonCode = "snoozed"
	// The same while calls with [Debounce] put it off. Until; Wait: the silence that they ask for;
	// Since: the first call; Latest.
	ReasonDebounced ReasonCode = "debounced"

	// The job is the last step of a [Flow] and waits for other steps. Until: the deadline. Ahead,
	// Limit: steps that have not ended, and all of them. More: the [Group] is open. Missing.
	ReasonFlowOpen ReasonCode = "flow_open"

	// The job is past its expiry, or will be when it is due: it is dropped instead of started.
	// Since: the expiry.
	ReasonExpired ReasonCode = "expired"
	// A later release has stored the job, in a form that this one cannot read: only servers of that
	// release run it. Version.
	ReasonLaterRelease ReasonCode = "later_release"
	// The topic is damaged: the job has a record and no place, or a place and no record. Finding.
	// [Client.Repair] heals it.
	ReasonOrphan ReasonCode = "orphan"
	// INFO shows that Redis refuses writes, or may refuse them. Refusal; for OOM, Used and Limit.
	ReasonRedisCannotWrite ReasonCode = "redis_cannot_write"

	// The topic is paused. There is one such reason for each of its pauses. By, Because, Since;
	// Until, which is zero if the pause has no end.
	ReasonTopicPaused ReasonCode = "topic_paused"
	// The topic is held: see [Hold]. Until, By, Because.
	ReasonTopicHeld ReasonCode = "topic_held"
	// As many jobs of the topic are running as its [Limits] allow, or in a partition as its share
	// of them allows. Running, Limit; Stragglers; Partition, Whole.
	ReasonTopicLimit ReasonCode = "topic_limit"
	// The rate of the topic allows no start now. Until: the next start. Rate; Ahead: jobs before
	// this one.
	ReasonTopicRate ReasonCode = "topic_rate"
	// No live server handles the topic. Others: live servers, which handle other topics. Server,
	// Host, Since: the last heartbeat of one that did. It is known only if that server did not stop
	// cleanly, and until another server removes the entry.
	ReasonNoServer ReasonCode = "no_server"
	// All live servers of the topic are stopping, and take no more jobs. Servers.
	ReasonDraining ReasonCode = "draining"

	// Live servers of the topic have sent none of their last two heartbeats, and may be dead.
	// Servers: those of the topic; Others: those of them that have sent theirs. Server, Host,
	// Since: the last heartbeat of one that has not. The reason is a decisive one if Others is 0.
	ReasonServerSilent ReasonCode = "server_silent"
	// The job has been due for more than a second, nothing is in its way, and no server has taken
	// it, although workers were idle at the last heartbeats. Since: when it was due. Running,
	// Workers, Servers; Server, Host, LoopAge: the newest heartbeat.
	ReasonNotTaken ReasonCode = "not_taken"

	// The job is due and still in the bucket. Since: when it was due. Ahead: jobs that are due
	// before it. LoopAge: how long ago a live server last tried to promote.
	ReasonNotPromoted ReasonCode = "not_promoted"
	// All workers of the topic are busy, or were at the last heartbeats while the job has been due
	// for more than a second. The handler of a cancelled job keeps its worker busy too. Running,
	// Workers, Servers; Job, For, Server, Host: the job that had been running the longest at the
	// last heartbeat of its server. It can have finished since.
	ReasonAllBusy ReasonCode = "all_busy"
	// All workers of the topic's [Pool] were busy, some of them with other topics, at the last
	// heartbeats of all servers that take its jobs. Running, Workers: those of the pools; Servers.
	ReasonPoolBusy ReasonCode = "pool_busy"
	// The key of the job is held: see [HoldKey]. Until.
	ReasonKeyHeld ReasonCode = "key_held"
	// The key of the job is paused: see [Client.PauseKey].
	ReasonKeyPaused ReasonCode = "key_paused"
	// As many jobs of the key are running as its limits allow: see [KeyLimits]. Running, Limit;
	// Stragglers.
	ReasonKeyLimit ReasonCode = "key_limit"
	// The rate of the key allows no start now. Until: the next start. Rate.
	ReasonKeyRate ReasonCode = "key_rate"
	// The jobs of its key run in their order, and one in front of this one has failed or is dead:
	// see Ordered and OnDead in [Limits]. Job: that one. Until: its due time; zero if it is dead.
	ReasonKeyBlocked ReasonCode = "key_blocked"
	// Too few jobs are ready for a batch: see [Gather]. Until: when a batch begins nevertheless.
	ReasonGathering ReasonCode = "gathering"
	// Other jobs are in front of this one, or keys are in the round: see [Key]. Ahead, More, Keys,
	// PerSecond; Wait, if there are no keys; Partition.
	ReasonBehind ReasonCode = "behind"
	// The job has a key: see [Key]. Other jobs of the key are in front of it, or other keys are in
	// the round. Ahead: those jobs. Keys; PerSecond.
	ReasonKeyBehind ReasonCode = "key_behind"

	// The job is running. Attempt; Until: the end of its lease, which its server extends. Since,
	// Server, Host: if the job is one of the three that its server has been running the longest, as
	// of the last heartbeat.
	ReasonRunning ReasonCode = "running"
	// The job has a successor: see [Debounce]. Until: when that is due, if the run has ended by
	// then; Used: the bytes of its record.
	ReasonSuccessor ReasonCode = "successor"
	// The lease of the job is over, because its server is gone or frozen, and no server has taken
	// the job back yet. Since: the end of the lease. Attempt; Server, Host as for running.
	ReasonLeaseOver ReasonCode = "lease_over"
	// The job is buried, and does not run unless revived. Since; Attempt: its last one. Error: the
	// newest.
	ReasonDead ReasonCode = "dead"
	// The job has completed. Since; Until: how long it is kept. Attempt: the one that completed it.
	ReasonDone ReasonCode = "done"
)

// A Reason is a reason why a job is not running, or that it is. Its Code tells which fields are
// set. Times are by Redis's clock.
type Reason struct {
	Code ReasonCode
	Text string // one sentence in English

	Since, Until time.Time
	Latest       time.Time // the latest time to which calls put the job off

	By      string // who acted, paused or held, as [WithActor] or [Pause] say
	Because string // of a pause or a hold
	Action  string // as in an [AuditEntry]

	Attempt int
	Snoozes int
	// Of a job with [ProcessAtEach]: the number of the stage that is due, and how many there are.
	Stage, Stages int
	Error         *AttemptError

	Server, Host string // a server: its ID and its host
	Servers      int
	Others       int
	Workers      int
	Running      int // jobs with a lease, at most Workers; of batch handlers, their batches
	Stragglers   int // of Running: jobs that were cancelled or replaced, and whose handlers may still run
	Rate         Rate
	Job          string        // an ID
	For          time.Duration // how long Job had been running

	// Ahead is the number of entries in front of the job. For a job without a key it is at most
	// 10,000, and entries left over from cancelled jobs can be among them.
	Ahead int64
	More  bool  // there are more than 10,000, as far as is known
	Keys  int64 // keys in the round, with that of the job, and with the jobs without one as one more

	// PerSecond is how many jobs of the topic the servers have taken per second during the last
	// minute, as of their heartbeats. It is zero if they took none, or if one of them has sent only
	// one heartbeat or is of a release that does not count.
	PerSecond float64
	// Wait is how long Ahead jobs take at that pace. It is zero if the pace is unknown, if More is
	// set, or if the topic is paused. With ReasonDebounced it is a time of silence.
	Wait time.Duration

	LoopAge time.Duration // by the heartbeats and Redis's clock
	Missing string        // steps that have started and not ended, and what holds them up
	Finding FindingKind   // FindingNoPlace or FindingNoRecord

	// Refusal is the code of the error with which Redis refuses writes: OOM (it is full), READONLY
	// (it is a replica), MISCONF (it cannot save its data) or NOREPLICAS (too few replicas follow).
	Refusal string
	// Used and Limit are bytes of memory. With ReasonSuccessor, Used is those of a record. With
	// ReasonTopicLimit and ReasonKeyLimit, Limit is the limit of running jobs; with ReasonFlowOpen,
	// the number of steps.
	Used, Limit int64
	Version     int // the format version of the job's record

	// Partition reports that Ahead, Keys, Running and Limit are those of the partition that has the
	// job. Then Whole is the limit of the topic, of which Limit is the share.
	Partition bool
	Whole     int64
}

// Explain says why a job is not running: a verdict in one sentence, and every reason that holds. A
// job that does not exist has the verdict of [ReasonNotFound]; that is no error.
//
// Explain knows only what Redis holds. Which server runs a job is known from heartbeats, which are
// up to 5 s old and name the three longest-running jobs of a topic. A job that finished, expired or
// was cancelled without an actor leaves no trace. If Redis refuses INFO or the audit to the user,
// what they say is left out.
//
// Cost: O(log N), the search of at most 10,000 entries of ready, and O(servers), in one round trip
// to each node of a Cluster for up to about 100 servers. If the job should be running by its due
// time and is not, or if it does not exist, INFO is one more call. If it does not exist, the audit
// is another one, O(1,000). The last step of a [Flow] costs the read of the flow, and an
// explanation of up to three of its steps. A topic with partitions costs two round trips more.
func (i *Inspector) Explain(ctx context.Context, topic, id string) (*Explanation, error) {
	place := script.Place{Call: "explain", Topic: topic, Job: id}
	err := i.validate(ctx, topic, id)
	if err != nil {
		return nil, place.At(err)
	}
	c, err := i.circumstances(ctx, topic, id)
	if err != nil {
		return nil, place.At(err)
	}
	verdict, reasons := c.Explain()
	e := &Explanation{Verdict: verdict, Job: c.info, Settings: c.settings, Waiters: c.Waiters, At: c.At}
	if c.info != nil {
		e.Partition = PartitionRef(places.RefOf(c.info.place))
	}
	for n := range reasons {
		e.Reasons = append(e.Reasons, c.reason(&reasons[n]))
	}
	return e, nil
}

// reason returns a reason as Explain returns it.
func (c *circumstances) reason(r *explain.Reason) Reason {
	to := Reason{
		Code: ReasonCode(r.Code), Text: r.Text, Since: r.Since, Until: r.Until, Latest: r.Latest, By: r.By, Because: r.Because, Action: r.Action,
		Attempt: r.Attempt, Snoozes: r.Snoozes, Stage: r.Stage, Stages: r.Stages, Server: r.Server, Host: r.Host, Servers: r.Servers, Others: r.Others,
		Workers: r.Workers, Running: r.Running, Stragglers: r.Stragglers, Job: r.Job, For: r.For, Ahead: r.Ahead, More: r.More, Keys: r.Keys,
		PerSecond: r.PerSecond, Wait: r.Wait, LoopAge: r.LoopAge, Finding: FindingKind(r.Finding), Refusal: r.Refusal,
		Used: r.Used, Limit: r.Limit, Version: r.Version, Missing: r.Missing, Partition: r.Partition, Whole: r.Whole,
	}
	if r.Error != nil {
		to.Error = &c.info.Errors[len(c.info.Errors)-1]
	}
	switch to.Code {
	case ReasonTopicRate:
		to.Rate = c.rate
	case ReasonKeyRate:
		to.Rate = c.keyRate
	}
	return to
}

// circumstances are the facts of a job, with what they were read from.
type circumstances struct {
	explain.Facts
	info          *JobInfo // nil: there is no such job
	rate, keyRate Rate     // of the topic and of the key
	settings      []Setting
}

// circumstancesOf returns the call that reads them in one place of a topic.
func circumstancesOf(k *script.Keys, id string) *script.Call {
	return script.NewCall(script.Explain, k.Topic, 1, k.Of(script.Explain, ""), []any{id, recordHead, explain.Look})
}

// circumstances reads them.
func (i *Inspector) circumstances(ctx context.Context, topic, id string) (*circumstances, error) {
	k := script.NewKeys(i.o.prefix, topic)
	call := circumstancesOf(k, id)
	first := redis.NewScanCmd(ctx, nil, "hscan", script.ServersKey(i.o.prefix), 0, "count", script.HeartbeatsPage)
	asked := places.AskMap(ctx, k)
	i.scripts.DoWith(ctx, []*script.Call{call}, first, asked.SliceCmd)
	if call.Err != nil {
		return nil, call.Err
	}
	servers, err := i.serversAfter(ctx, first)
	if err != nil {
		return nil, err
	}
	c, err := i.placed(ctx, k, id, call.Reply, asked)
	if err != nil {
		return nil, err
	}
	c.serve(topic, servers)
	if err := i.explainFlow(ctx, c); err != nil {
		return nil, err
	}
	if c.info == nil {
		acts, err := i.actsAbout(ctx, topic, id)
		if err != nil {
			return nil, err
		}
		for _, a := range acts {
			cancels := a.Action == commit.Cancel.Name && a.Count > 0 && a.Was != "none" // 0: its outcome is unknown
			c.Acts = append(c.Acts, explain.Act{By: a.Actor, Action: a.Action, At: a.At, Cancels: cancels})
		}
	}
	if c.info == nil || c.Late() {
		node, err := i.node(ctx, k.Pool)
		if err != nil {
			return nil, err
		}
		told, err := node.Info(ctx).Result()
		if err != nil && !script.Answered(err) {
			return nil, err
		}
		c.Redis = script.ParseInfo(told)
		if _, many := i.rdb.(*redis.ClusterClient); many {
			delete(c.Redis, "role") // a client of a Cluster writes to masters, wherever it reads
		}
	}
	return c, nil
}

// readCircumstances reads a reply of the explain script.
func readCircumstances(topic, id string, r script.Reply) *circumstances {
	at := func(column int) string {
		switch column {
		case script.ColumnPlace:
			return r.Text(22)
		case script.ColumnNote:
			return r.Text(25)
		}
		return r.Text(2 + column)
	}
	now := msTime(r.Now())
	c := &circumstances{info: readJobInfo(topic, id, recordHead, at)}
	c.ID, c.At, c.Beat = id, now, serve.HeartbeatEvery
	moved, _ := record.DecodeMoved(at(script.ColumnMoved))
	c.Job = c.info.fact(moved.Revived)
	for _, p := range record.DecodePauses(r.Text(11), r.Now()) {
		c.Pauses = append(c.Pauses, explain.Pause{By: p.By, Because: p.Reason, Since: msTime(p.Since), Until: orZero(p.Until)})
	}
	hold := readHold(r.List(16), r.Now())
	c.Hold = explain.Hold{Until: hold.until, By: hold.by, Because: hold.reason}
	c.Limits, c.rate, c.Next = limitsFact(hold.limits.Running, hold.limits.Rate), hold.limits.Rate, hold.next
	if _, c.Gather = keyHold(r.List(16).Text(5)); c.Gather.Before(now) {
		c.Gather = time.Time{}
	}
	c.Ahead, c.Whole, c.Rank, c.Leased = r.Number(12), r.Number(13) == 1, r.Number(14), r.Number(15)
	c.Before, c.Keys = r.Number(17), r.Number(18)
	c.KeyPaused, c.KeyHeld = keyHold(r.Text(19))
	if limit := r.List(20); len(limit) >= 3 {
		_, c.Parked = keyHold(limit.Text(0))
		c.KeyRunning = limit.Number(1)
		ration := decodeKeyLimits(limit.Text(2)).or(hold.limits)
		c.Ration, c.keyRate = limitsFact(ration.Running, ration.Rate), ration.Rate
		c.KeyStragglers = limit.Number(3)
		c.Blocker = limit.Text(4)
		_, c.Blocked = keyHold(limit.Text(5))
	}
	c.Stragglers = r.Number(21)
	_, c.Free = keyHold(r.Text(23))
	if next := strings.Fields(r.Text(24)); len(next) == 3 {
		due, _ := strconv.ParseInt(next[0], 10, 64)
		bytes, _ := strconv.ParseInt(next[2], 10, 64)
		c.Heir = &explain.Heir{Due: msTime(due), Bytes: bytes}
	}
	c.Waiters = int(r.Number(26))
	switch {
	case at(script.ColumnRecord) == "" && at(script.ColumnBucket)+at(script.ColumnLease)+at(script.ColumnDead) != "":
		c.Finding = string(FindingNoRecord)
	case c.info != nil && c.info.State == StateReady && c.Ahead < 0 && c.Before < 0 && c.Whole:
		c.Finding = string(FindingNoPlace)
	}
	return c
}

// fact returns what an explanation needs of a job; nil if there is no job.
func (info *JobInfo) fact(revived bool) *explain.Job {
	if info == nil {
		return nil
	}
	job := &explain.Job{
		State: string(info.State), Due: info.Due, DueReason: string(info.DueReason), Attempt: info.Attempt, Snoozes: info.Snoozes, Stage: info.Stage, Stages: info.Stages,
		Revived: revived, EnqueuedAt: info.EnqueuedAt, LeaseEnd: info.LeaseEnd, BuriedAt: info.BuriedAt, FinishedAt: info.FinishedAt,
		KeptUntil: info.KeptUntil, ExpireAt: info.ExpireAt,
		Silence: ofMS(info.options.DueIn), BurstBegan: info.BurstBegan, BurstEnds: info.BurstEnds, Progress: (*explain.Progress)(info.Progress), Steps: info.Steps,
	}
	if errors.Is(info.Undecodable, record.ErrNewer) {
		job.Later = int(info.Raw[record.NonceLen])
	}
	if n := len(info.Errors); n > 0 {
		last := &info.Errors[n-1]
		job.LastError = &explain.Failure{At: last.At, Kind: string(last.Kind), Message: last.Message}
	}
	return job
}

// limitsFact returns what an explanation needs of limits.
func limitsFact(running int, rate Rate) explain.Limits {
	limits := explain.Limits{Running: running}
	if rate != (Rate{}) {
		limits.Rate = rate.String()
	}
	return limits
}

// serve divides the servers.
func (c *circumstances) serve(topic string, servers []ServerInfo) {
	var last *ServerInfo
	live := slices.DeleteFunc(slices.Clone(servers), func(s ServerInfo) bool { return !s.live(c.At) })
	c.settings = c.info.Settings(live)
	for n, s := range servers {
		_, handles := s.Topics[topic]
		switch {
		case !s.live(c.At):
			if handles && (last == nil || s.SeenAt.After(last.SeenAt)) {
				last = &servers[n]
			}
		case !handles:
			c.Others++
		case s.State == ServerDraining:
			c.Draining = append(c.Draining, s.fact(topic))
		default:
			c.Takers = append(c.Takers, s.fact(topic))
		}
	}
	if last != nil {
		gone := last.fact(topic)
		c.Last = &gone
	}
}

// fact returns what an explanation needs of a server that handles a topic.
func (s ServerInfo) fact(topic string) explain.Server {
	does := s.Topics[topic]
	one := explain.Server{
		ID: s.ID, Host: s.Host, SeenAt: s.SeenAt, Workers: does.Workers, Capacity: does.capacity(), Running: does.Running,
		Pool: does.Pool, PoolSize: does.PoolSize, Taken: does.Taken, Within: does.Within,
	}
	for _, other := range s.Topics {
		if other.Pool == does.Pool {
			one.PoolRunning += other.Running
		}
	}
	one.PromoteAge, one.Promotes = does.Loops[serve.TurnNames[serve.TurnPromote]]
	for _, job := range does.Longest {
		one.Longest = append(one.Longest, explain.Run{ID: job.ID, For: job.Running})
	}
	return one
}

// actsAbout returns the acts in the audit that have changed a job. It has none if Redis refuses the
// audit.
func (i *Inspector) actsAbout(ctx context.Context, topic, id string) ([]AuditEntry, error) {
	acts, err := i.Audit(ctx, record.MaxActs)
	if err != nil && script.Code(err) == script.CodeNoPerm {
		return nil, nil
	}
	return slices.DeleteFunc(acts, func(a AuditEntry) bool { return !a.about(topic, id) }), err
}

// jobActions are the actions on jobs. The ID of other acts is the name of a schedule.
var jobActions = []string{commit.Cancel.Name, commit.Delete.Name, commit.Reschedule.Name, commit.Revive.Name, commit.Bury.Name}

// about reports whether an act has certainly changed a job. Of a batch that is known if it has
// changed all of its jobs, and if the audit names them all.
func (a *AuditEntry) about(topic, id string) bool {
	if !slices.Contains(jobActions, a.Action) || a.Topic != "" && a.Topic != topic {
		return false
	}
	if a.ID != "" {
		return a.ID == id
	}
	jobs := record.BatchOf(a.Topic, a.Filter)
	return int64(len(jobs)) == a.Count && slices.Contains(jobs, [2]string{topic, id})
}
