package tests

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

var (
	writeStored = flag.String("write-stored", "", "write testdata/stored/<version>.redis: what this release stores")
	update      = flag.Bool("update", false, "write the golden files of testdata/stored instead of comparing them")
)

// storedFile is where the data of a release are.
func storedFile(version, ending string) string {
	return redistest.Path("tests/testdata/stored/" + version + "." + ending)
}

// storedTopics are the topics of the data.
var storedTopics = []string{"keys", "order", "paused", "plain", "slots"}

// storeAll stores something in every key that there is, by the calls of the library. It ends with
// servers that run jobs, as if they had died then.
func storeAll(b *queuetest.Bubble) {
	ctx := delayq.WithActor(b.Context(), "ann")
	must := func(err error) {
		b.Helper()
		require.NoError(b, err)
	}
	block := func(ctx context.Context) error { // until the server ends
		<-ctx.Done()
		return ctx.Err()
	}
	handler := func(ctx context.Context, job *delayq.Job) error {
		switch name, _, _ := strings.Cut(job.ID, "-"); name {
		case "fails", "halts":
			return queuetest.ErrTest
		case "dies":
			return delayq.Permanent(queuetest.ErrTest)
		case "lives":
			if job.Attempt == 1 {
				return delayq.Permanent(queuetest.ErrTest)
			}
			return delayq.Snooze(40 * time.Minute)
		case "sleeps":
			return delayq.Snooze(40 * time.Minute)
		case "says":
			return job.SetOutput([]byte("an output\x00"))
		case "renews":
			return delayq.Again([]byte("renewed"), delayq.ProcessIn(40*time.Minute))
		case "runs":
			return block(ctx)
		}
		if strings.HasPrefix(job.ID, "waits@") {
			return block(ctx)
		}
		return nil
	}
	add := func(name string, spec delayq.Spec, opts ...delayq.ScheduleOption) {
		b.Helper()
		must(b.Client.Schedule(ctx, "slots", name, spec, []byte("of "+name), opts...))
	}
	must(b.Client.SetLimits(ctx, "keys", delayq.Limits{Running: 10, Rate: delayq.Per(1000, time.Second), RunningPerKey: 1, RatePerKey: delayq.Per(100, time.Minute)}))
	must(b.Client.SetKeyLimits(ctx, "keys", "b", delayq.KeyLimits{Weight: 3, Running: 2, Rate: delayq.Per(5, time.Hour)}))
	must(b.Client.SetLimits(ctx, "order", delayq.Limits{Ordered: true, OnDead: delayq.HaltKey}))
	add("hourly", delayq.Every(time.Hour), delayq.Retry(2), delayq.Header("a", "b"))
	add("waits", delayq.Every(time.Minute), delayq.OverlapQueueOne)
	add("rule", delayq.Cron("30 4 * * 1-5", "Europe/Berlin"), delayq.EndAt(b.Began.AddDate(1, 0, 0)))
	add("stopped", delayq.Every(time.Minute))
	must(b.Client.PauseSchedule(ctx, "slots", "stopped"))
	must(b.Client.EditSchedule(ctx, "slots", "hourly", func(d *delayq.ScheduleDefinition) error { d.EditedBy, d.Payload = "ann", []byte("edited"); return nil }))

	server := queuetest.NewServer(b.RDB, queuetest.Prefix, delayq.Concurrency(2))
	for _, topic := range storedTopics {
		workers := 2
		if topic == "keys" {
			workers = 3 // one is free for the take that finds that a limit has stopped a key
		}
		must(server.HandlerFunc(topic, handler, delayq.Concurrency(workers)))
	}
	run, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(run) }()
	b.Cleanup(func() { stop(); <-ended })
	b.Pass(time.Second)

	b.Enqueue("plain", "fails-first", delayq.Retry(7), delayq.Backoff(20*time.Minute, time.Hour), delayq.Timeout(time.Minute), delayq.Header("trace", "x\xff"))
	b.Enqueue("plain", "sleeps")
	b.Enqueue("plain", "dies", delayq.Retry(0))
	b.Enqueue("plain", "lives")
	b.Enqueue("plain", "says", delayq.Retention(1000*time.Hour))
	b.Enqueue("plain", "renews", delayq.Retention(1000*time.Hour))
	b.Enqueue("plain", "scheduled", delayq.ProcessIn(20*time.Minute), delayq.ExpireIn(1000*time.Hour), delayq.Retention(1000*time.Hour))
	b.Enqueue("plain", "expires", delayq.ProcessIn(20*time.Minute), delayq.ExpireIn(20*time.Minute+time.Millisecond))
	b.Enqueue("plain", "moved", delayq.ProcessIn(20*time.Minute))
	b.Enqueue("plain", "id \x00\xff", delayq.ProcessIn(20*time.Minute))
	b.Enqueue("plain", "buried", delayq.ProcessIn(time.Hour))
	b.Pass(time.Second)
	must(b.Client.Revive(ctx, "plain", "lives"))
	must(b.Client.Reschedule(ctx, "plain", "moved", delayq.ProcessIn(30*time.Minute)))
	must(b.Client.Bury(ctx, "plain", "buried", "because"))
	b.Enqueue("plain", "runs-1", delayq.Retry(3))
	b.Enqueue("plain", "runs-2")
	b.Pass(time.Second)
	b.Enqueue("plain", "ready-1")
	b.Enqueue("plain", "ready-2", delayq.Replace())
	b.Enqueue("plain", "ready-3", delayq.Key("some"), delayq.Priority(time.Minute))

	b.Enqueue("keys", "runs-a", delayq.Key("a"))
	b.Enqueue("keys", "runs-b", delayq.Key("b"))
	b.Pass(time.Second)
	_, err := b.Client.EnqueueBatch(ctx, []delayq.NewJob{
		{Topic: "keys", ID: "a-2", Options: []delayq.JobOption{delayq.Key("a")}},
		{Topic: "keys", ID: "runs-e", Options: []delayq.JobOption{delayq.Key("e")}},
		{Topic: "keys", ID: "e-2", Options: []delayq.JobOption{delayq.Key("e")}},
	})
	must(err)
	b.Enqueue("keys", "b-later", delayq.Key("b"), delayq.Priority(-time.Minute), delayq.ProcessIn(20*time.Minute))
	must(b.Client.PauseKey(ctx, "keys", "c"))
	must(b.Client.HoldKey(ctx, "keys", "d", 30*time.Minute))
	b.Enqueue("keys", "c-1", delayq.Key("c"))
	b.Enqueue("keys", "d-1", delayq.Key("d"))
	b.Enqueue("order", "halts", delayq.Key("k"), delayq.Retry(0))
	b.Enqueue("order", "fails", delayq.Key("l"), delayq.Backoff(20*time.Minute, 20*time.Minute))
	b.Pass(time.Second)
	b.Enqueue("order", "k-2", delayq.Key("k"))
	b.Enqueue("order", "l-2", delayq.Key("l"))
	must(b.Client.Pause(ctx, "paused", delayq.Pause{By: "ops", Reason: "deploy {x}", For: 30 * time.Minute}))
	must(b.Client.Hold(ctx, "paused", 40*time.Minute, "429"))
	b.Enqueue("paused", "waits")
	b.Pass(2*time.Minute + 30*time.Second)
	b.Enqueue("order", "runs", delayq.Key("m")) // its take has a receipt
	b.Pass(time.Second)
	must(b.RDB.LMove(b.Context(), queuetest.Prefix+":{plain}:ready", queuetest.Prefix+":{plain}:handoff", "LEFT", "RIGHT").Err())
}

// write writes all keys of the queue as commands that make them again, one a line, with quoted
// arguments. The first line has the time.
func write(b *queuetest.Bubble, file string) {
	ctx, rdb := b.Context(), b.RDB
	lines := []string{"# " + time.Now().UTC().Format(time.RFC3339)}
	command := func(args ...string) {
		for i, arg := range args {
			if i > 0 {
				args[i] = strconv.QuoteToASCII(arg)
			}
		}
		lines = append(lines, strings.Join(args, " "))
	}
	score := func(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }
	census, err := redistest.Census(ctx, rdb, queuetest.Prefix+":*")
	require.NoError(b, err)
	for _, key := range slices.Sorted(maps.Keys(census)) {
		switch census[key] {
		case "hash":
			all := rdb.HGetAll(ctx, key).Val()
			for _, field := range slices.Sorted(maps.Keys(all)) {
				command("HSET", key, field, all[field])
			}
		case "zset":
			for _, z := range rdb.ZRangeWithScores(ctx, key, 0, -1).Val() {
				command("ZADD", key, score(z.Score), z.Member.(string))
			}
		case "list":
			for _, one := range rdb.LRange(ctx, key, 0, -1).Val() {
				command("RPUSH", key, one)
			}
		case "set":
			for _, one := range slices.Sorted(slices.Values(rdb.SMembers(ctx, key).Val())) {
				command("SADD", key, one)
			}
		default:
			command("SET", key, rdb.Get(ctx, key).Val())
		}
		if ttl := rdb.PTTL(ctx, key).Val(); ttl > 0 {
			command("PEXPIRE", key, strconv.FormatInt(ttl.Milliseconds(), 10))
		}
	}
	require.NoError(b, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644))
}

// readStored returns the commands of a file of write, and the time at which it was written.
func readStored(t *testing.T, file string) (commands [][]any, at time.Time) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if stamp, ok := strings.CutPrefix(line, "# "); ok {
			at, err = time.Parse(time.RFC3339, stamp)
			require.NoError(t, err)
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		command := []any{name}
		for rest != "" {
			quoted, err := strconv.QuotedPrefix(rest)
			require.NoError(t, err, line)
			arg, err := strconv.Unquote(quoted)
			require.NoError(t, err, line)
			command, rest = append(command, arg), strings.TrimPrefix(rest[len(quoted):], " ")
		}
		commands = append(commands, command)
	}
	return commands, at
}

// load carries commands out.
func load(t *testing.T, rdb *redis.Client, commands [][]any) {
	t.Helper()
	for _, command := range commands {
		require.NoError(t, rdb.Do(t.Context(), command...).Err(), "%q", command)
	}
}

// With -write-stored this release writes what it stores.
func TestWriteStored(t *testing.T) {
	queuetest.NeedsPop(t)
	if *writeStored == "" {
		t.Skip("only with -write-stored")
	}
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		storeAll(b)
		write(b, storedFile(*writeStored, "redis"))
	})
}

// storedVersions are the releases whose data are here.
func storedVersions(t *testing.T) (list []string) {
	t.Helper()
	files, err := filepath.Glob(storedFile("v*", "redis"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		list = append(list, strings.TrimSuffix(filepath.Base(file), ".redis"))
	}
	return list
}

// The data of each release have all keys that it knew. Those of the newest one have all of today,
// unless a key is later than it.
func TestStoredHasEveryKey(t *testing.T) {
	t.Parallel()
	for _, version := range storedVersions(t) {
		commands, _ := readStored(t, storedFile(version, "redis"))
		var names []string
		for _, command := range commands {
			name := command[1].(string)
			if _, own, ok := strings.Cut(name, "}:"); ok {
				name, _, _ = strings.Cut(own, ":")
			} else {
				name = strings.TrimPrefix(name, queuetest.Prefix+":")
			}
			names = append(names, name)
		}
		want := []string{"receipt", "taken", "topics", "servers", "audit"}
		for _, row := range reflect.VisibleFields(reflect.TypeFor[script.Keys]()) {
			if name, kind, ok := strings.Cut(row.Tag.Get("redis"), ","); ok && kind != "none" && !slices.Contains(laterKeys[version], name) {
				want = append(want, name)
			}
		}
		for _, name := range want {
			require.Contains(t, names, name, version)
		}
	}
}

// laterKeys are keys that a release did not have.
var laterKeys = map[string][]string{"v0.1.0": {"tombs", "next", "notes", "parcels", "plans", "undelivered", "flows", "steps", "parts", "staying"}}

// This release inspects, checks, repairs and serves what each earlier one has stored. What it sees
// and does is in golden files.
func TestStoredByEarlierReleases(t *testing.T) {
	queuetest.NeedsPop(t)
	for _, version := range storedVersions(t) {
		t.Run(version, func(t *testing.T) {
			commands, at := readStored(t, storedFile(version, "redis"))
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.Pass(time.Until(at))
				load(b.T, b.RDB, commands)
				var see sight
				see.look(b)
				see.repair(b, "before")
				see.serve(b)
				see.repair(b, "after")
				see.look(b)
				golden := storedFile(version, "golden")
				if *update {
					require.NoError(b, os.WriteFile(golden, []byte(see.String()), 0o644))
				}
				want, err := os.ReadFile(golden)
				require.NoError(b, err)
				require.Equal(b, strings.Split(string(want), "\n"), strings.Split(see.String(), "\n"), "go test ./tests -run TestStored -update writes it")
			})
		})
	}
}

// The same data in a real Redis: a check finds nothing there, and every job can be read. By its
// clock, all is long due.
func TestStoredInARealRedis(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	for _, version := range storedVersions(t) {
		commands, _ := readStored(t, storedFile(version, "redis"))
		rdb := redistest.Start(t, redistest.NoRoles...).Client(t)
		load(t, rdb, commands)
		client := delayq.NewClient(rdb, delayq.Prefix(queuetest.Prefix))
		insp := delayq.NewInspector(rdb, delayq.Prefix(queuetest.Prefix))
		for _, topic := range storedTopics {
			for range 2 {
				report, err := client.Repair(t.Context(), topic)
				require.NoError(t, err)
				require.Empty(t, report.Findings, "%s of %s", topic, version)
			}
			for _, state := range jobStates {
				for info, err := range insp.All(t.Context(), delayq.Query{Topic: topic, State: state}) {
					require.NoError(t, err)
					require.NoError(t, info.Undecodable)
				}
			}
		}
	}
}

var jobStates = []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateRunning, delayq.StateDead, delayq.StateDone}

// A sight is a text about a queue.
type sight struct{ strings.Builder }

func (s *sight) say(format string, args ...any) { fmt.Fprintf(s, format+"\n", args...) }

// stamp is a time as texts have it.
func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05.000")
}

// look says what an inspector sees.
func (s *sight) look(b *queuetest.Bubble) {
	ctx, insp := b.Context(), b.Inspector
	s.say("# at %s", stamp(time.Now()))
	topics, err := insp.Topics(ctx)
	require.NoError(b, err)
	s.say("topics %q", topics)
	for _, topic := range topics {
		stats := b.Stats(topic)
		s.say("\n## %s: scheduled %d, ready %d, running %d, dead %d, done %d; limits %v; pauses %d; hold %q", topic,
			stats.Scheduled, stats.Ready, stats.Running, stats.Dead, stats.Done, stats.Limits, len(stats.Pauses), stats.HeldReason)
		for _, name := range slices.Sorted(maps.Keys(stats.Counters)) {
			if n := stats.Counters[name]; n > 0 {
				s.say("%s %d", name, n)
			}
		}
		for _, state := range jobStates {
			for short, err := range insp.All(ctx, delayq.Query{Topic: topic, State: state}) {
				require.NoError(b, err)
				s.job(b, topic, short.ID)
			}
		}
		keys, err := insp.Keys(ctx, topic, "", 100)
		require.NoError(b, err)
		for _, key := range keys {
			s.say("key %q: waiting %d, first %q, weight %d, paused %v, held %s, running %d, limited %s, blocker %q %s", key.Key, key.Waiting, key.First, key.Weight,
				key.Paused, stamp(key.HeldUntil), key.Running, stamp(key.LimitedUntil), key.Blocker, stamp(key.BlockedUntil))
		}
		schedules, err := insp.Schedules(ctx, topic)
		require.NoError(b, err)
		for _, info := range schedules {
			runs, err := insp.Runs(ctx, topic, info.Name, 100)
			require.NoError(b, err)
			s.say("schedule %q %s: %v, next %s, waiting %s, fired %d, payload %q, by %q, overlap %v, runs %d, unreadable %v", info.Name, info.State, info.Spec, stamp(info.NextSlot),
				stamp(info.WaitingSlot), info.Fired, info.Payload, info.EditedBy, info.OnOverlap, len(runs), info.Undecodable)
		}
		history, err := insp.History(ctx, topic, b.Began, b.Began.Add(12*time.Hour), time.Hour)
		require.NoError(b, err)
		for _, step := range history.Steps {
			if len(step.Outcomes) > 0 {
				s.say("history %s: %v", stamp(step.At), step.Outcomes)
			}
		}
	}
	acts, err := insp.Audit(ctx, 100)
	require.NoError(b, err)
	for _, act := range acts {
		s.say("act %s %q by %q: %q %q, %d", stamp(act.At), act.Action, act.Actor, act.Topic, act.ID, act.Count)
	}
	s.say("")
}

// job says what is known of a job.
func (s *sight) job(b *queuetest.Bubble, topic, id string) {
	info := b.Get(topic, id)
	e, err := b.Inspector.Explain(b.Context(), topic, id)
	require.NoError(b, err)
	var failed []string
	for _, one := range info.Errors {
		failed = append(failed, fmt.Sprintf("%d %s %s", one.Attempt, one.Kind, one.Message))
	}
	s.say("%s %q: attempt %d of %d, key %q, due %s %s, expires %s, kept %s, snoozes %d, timeout %v, headers %q, payload %q, output %q, errors %q, reasons %v, unreadable %v",
		info.State, id, info.Attempt, info.Retries, info.Key, stamp(info.Due), info.DueReason, stamp(info.ExpireAt), stamp(info.KeptUntil), info.Snoozes, info.Timeout,
		info.Headers, info.Payload, info.Output(), failed, codes(e.Reasons), info.Undecodable)
}

// codes are those of reasons.
func codes(reasons []delayq.Reason) (list []delayq.ReasonCode) {
	for _, r := range reasons {
		list = append(list, r.Code)
	}
	return list
}

// repair says what a repair finds.
func (s *sight) repair(b *queuetest.Bubble, when string) {
	for _, topic := range storedTopics {
		for range 2 {
			report, err := b.Client.Repair(b.Context(), topic)
			require.NoError(b, err)
			s.say("repair of %s %s: %d jobs, %v", topic, when, report.Jobs, report.Findings)
		}
	}
}

// serve runs a server for an hour, and says which jobs it has run.
func (s *sight) serve(b *queuetest.Bubble) {
	recs := map[string]*queuetest.Recorder{}
	server := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(server *delayq.Server) {
		for _, topic := range storedTopics {
			recs[topic] = new(queuetest.Recorder)
			require.NoError(b, server.HandlerFunc(topic, recs[topic].Then(nil)))
		}
	}, delayq.Concurrency(1))
	b.Pass(time.Hour)
	require.NoError(b, server.Stop())
	for _, topic := range storedTopics {
		var runs []string
		for _, run := range recs[topic].All() {
			runs = append(runs, fmt.Sprintf("%q %d", run.ID, run.Attempt))
		}
		if topic == "slots" { // those of a schedule that has a slot every minute are many
			s.say("served %s: %d runs, the first ones %s", topic, len(runs), runs[:3])
			continue
		}
		s.say("served %s: %s", topic, strings.Join(runs, ", "))
	}
}
