package faults_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/check"
	"github.com/delayq/delayq/faults/rig"
)

// firstRelease is the tag of the release that all later ones work beside.
const firstRelease = "v0.1.0"

// fleetLimits are those of the topics of a mixed fleet.
var fleetLimits = map[string]check.Limits{
	"limited": {Topic: check.Limit{Running: 3, Starts: 60, Period: time.Second, Burst: 6}, Key: check.Limit{Running: 2}},
	"ordered": {Key: check.Limit{Running: 1}, Ordered: true},
}

// fleetTopics are the topics of a mixed fleet.
var fleetTopics = []string{"plain", "limited", "ordered"}

// A build is a program of faults/fleet with the library of one commit.
type build struct {
	name string // old or new
	path string

	// frees tells whether servers free the place of a job that is cancelled or replaced at once,
	// and not when its handler has returned.
	frees bool
}

// TestReleasesSideBySide runs servers and clients of an earlier release and of this source beside
// each other, on one Redis. They enqueue, cancel, move and replace their own jobs and those of the
// other one, with keys, limits, an order and schedules, while servers are killed, upgraded and
// downgraded. What both promise holds.
//
// The earlier release is the tag v0.1.0, or what the variable DELAYQ_OLD names. While there is no
// tag, it is the last commit, and the log says so.
func TestReleasesSideBySide(t *testing.T) {
	before, after := buildFleet(t)
	t.Run("an old server and a new client", func(t *testing.T) {
		f := newFleet(t, before)
		f.run([]*build{before}, []*build{after})
	})
	t.Run("a new server and an old client", func(t *testing.T) {
		f := newFleet(t, before)
		f.run([]*build{after}, []*build{before})
	})
	t.Run("both servers and both clients", func(t *testing.T) {
		f := newFleet(t, before)
		f.run([]*build{before, after}, []*build{before, after})
	})
}

// buildFleet builds the program with the library of an earlier release and with this one.
func buildFleet(t *testing.T) (before, after *build) {
	t.Helper()
	commit := earlierCommit(t)
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	require.NoError(t, os.Mkdir(tree, 0o700))
	output(t, "..", "git", "archive", "-o", filepath.Join(dir, "tree.tar"), commit)
	output(t, dir, "tar", "-xf", "tree.tar", "-C", "tree")
	source, err := os.ReadFile("fleet/main.go")
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(tree, "faults", "fleet"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(tree, "faults", "fleet", "main.go"), source, 0o600))

	before, after = &build{name: "old", path: filepath.Join(dir, "old")}, &build{name: "new", path: filepath.Join(dir, "new")}
	output(t, filepath.Join(tree, "faults"), "go", "build", "-o", before.path, "./fleet")
	output(t, ".", "go", "build", "-o", after.path, "./fleet")
	_, err = os.Stat(filepath.Join(tree, "lua", "prelude", "straggler.lua"))
	before.frees = os.IsNotExist(err)
	return before, after
}

// earlierCommit finds the commit of the earlier release, and says which one that is.
func earlierCommit(t *testing.T) string {
	t.Helper()
	place, err := git("rev-parse", "--show-prefix", "HEAD")
	if err == nil && !strings.HasPrefix(place, "faults/") {
		err = fmt.Errorf("this is not the directory faults of its clone: %q", place)
	}
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("CI must test a clone with git, for the source of earlier releases: %v", err)
		}
		t.Skipf("this needs a clone with git, for the source of earlier releases: %v", err)
	}
	name := os.Getenv("DELAYQ_OLD")
	if name == "" {
		name = firstRelease
		if _, err := git("rev-parse", "--verify", "refs/tags/"+name); err != nil {
			name, err = git("describe", "--tags", "--abbrev=0", "--match", "v*")
			if err != nil {
				t.Logf("there is no tag %s: old and new differ only by what is not committed", firstRelease)
				name = "HEAD"
			}
		}
	}
	commit, err := git("rev-parse", "--verify", name+"^{commit}")
	require.NoError(t, err, "DELAYQ_OLD must name a commit")
	t.Logf("old is %s, commit %s", name, commit)
	return commit
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).CombinedOutput() //nolint:gosec // the arguments are ours
	if err != nil {
		err = fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), err
}

// output runs a program in a directory, outside of the workspace of this process if there is one.
func output(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...) //nolint:gosec // the arguments are ours
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=") // the go.work above dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Run(), "%s %v: %s", name, args, &out)
}

// A fleet is servers and clients of two builds on one Redis.
type fleet struct {
	*bench
	before  *build
	servers []*rig.Worker
	clients []*rig.Worker
}

func newFleet(t *testing.T, before *build) *fleet {
	t.Helper()
	b := newBench(t)
	b.options.Limits = fleetLimits
	return &fleet{bench: b, before: before}
}

// config is that of a process, which reaches Redis directly.
func (f *fleet) config(name string) rig.WorkerConfig {
	c := f.bench.config(name)
	c.Redis.Addr, c.Topics = f.server.Addr(), fleetTopics
	return c
}

// start starts a process of a build, which ends with the test.
func (f *fleet) start(of *build, c rig.WorkerConfig, args ...string) *rig.Worker {
	f.t.Helper()
	w, err := rig.StartProgram(of.path, c, f.rec, args...)
	require.NoError(f.t, err)
	f.t.Cleanup(func() {
		if f.t.Failed() {
			f.t.Logf("%s, last a build of the %s source:\n%s", c.Name, of.name, w.Tail(4000))
		}
		_ = w.Kill()
		if crash := w.Crashes(); crash != "" {
			f.t.Errorf("%s crashed:\n%s", c.Name, crash)
		}
	})
	return w
}

// serverName is the name of the nth server. Its build can change.
func serverName(n int) string { return fmt.Sprintf("server-%d", n) }

// clientName is the name of a client of a build, and the prefix of the IDs of its jobs.
func clientName(of *build) string { return "client-" + of.name }

// produce starts a client of each build. Each acts on jobs of the next one. The first one sets the
// limits, before there are jobs.
func (f *fleet) produce(clients []*build) {
	f.t.Helper()
	for i, of := range clients {
		name := clientName(of)
		c := f.config(name)
		limits := map[string]any{}
		if i == 0 {
			for topic, l := range fleetLimits {
				limits[topic] = map[string]any{
					"Running": l.Topic.Running, "PerKey": l.Key.Running, "Starts": l.Topic.Starts, "Burst": l.Topic.Burst, "Ordered": l.Ordered,
				}
			}
		}
		text, err := json.Marshal(map[string]any{
			"Name": name, "Dir": c.Dir, "Redis": c.Redis, "Prefix": c.Prefix, "Seed": i, "Limits": limits,
			"Peer": clientName(clients[(i+1)%len(clients)]),
		})
		require.NoError(f.t, err)
		f.clients = append(f.clients, f.start(of, c, string(text)))
		f.await(name, 2*patient, func(events []rig.Event) bool { return len(filter(events, by(name, is(rig.OpUp, "")))) > 0 })
	}
	for _, of := range clients {
		require.NoError(f.t, f.direct.RPush(f.t.Context(), "begin:"+clientName(of), "now").Err())
	}
}

// upgrades returns how often all servers are killed and replaced.
func upgrades() int {
	if testing.Short() {
		return 1
	}
	return 10
}

// run lets servers and clients work while every server is killed, and then replaced by one of the
// other build if there are two. What is left in the end is worked off by the last servers.
func (f *fleet) run(servers, clients []*build) {
	f.produce(clients)
	for i, of := range servers {
		f.servers = append(f.servers, f.start(of, f.config(serverName(i))))
	}
	stop := f.background(func(ctx context.Context) { f.sample(ctx, "limited") }, func(ctx context.Context) { f.sample(ctx, "ordered") })
	defer stop()
	f.mix(clients)
	builds := slices.Clone(servers)
	for range upgrades() {
		for i := range f.servers {
			f.kill(i, builds[i])
			f.mix(clients)
		}
		builds = append(builds[1:], builds[0])
		for i := range f.servers {
			f.replace(i, builds[i])
			f.mix(clients)
		}
	}
	f.end(f.clients...)
	f.drained(patient)
	stop()
	report := f.judge()
	require.Equal(f.t, len(servers)*upgrades(), report.Faults["kill"])
	require.NotZero(f.t, report.Limited.Samples)
	require.NotZero(f.t, report.Limited.Ordered)
	f.judgeHandlers()
	f.clear()
}

// kill kills a server in the middle of a job, and starts it again.
func (f *fleet) kill(n int, of *build) {
	f.t.Helper()
	w := f.servers[n]
	f.await("a job of "+w.Name(), patient, func(events []rig.Event) bool { return len(inside(events, w.Name())) > 0 })
	require.NoError(f.t, w.Kill())
	f.servers[n] = f.start(of, f.config(serverName(n)))
}

// replace stops a server, and starts one of another build in its place.
func (f *fleet) replace(n int, by *build) {
	f.t.Helper()
	f.end(f.servers[n])
	f.servers[n] = f.start(by, f.config(serverName(n)))
}

// end waits until processes that are told to stop have done so without an error.
func (f *fleet) end(list ...*rig.Worker) {
	f.t.Helper()
	for _, w := range list {
		require.NoError(f.t, w.Term())
	}
	for _, w := range list {
		require.NoError(f.t, w.AwaitEnd(patient))
		require.Zero(f.t, w.Code(), "%s: %s", w.Name(), w.Tail(1000))
	}
}

// mixed are the events that a mixed fleet shows before a test goes on.
var mixed = map[string]func(e rig.Event) bool{
	"a job that is cancelled":         func(e rig.Event) bool { return e.Op == rig.OpCancel && e.Type == rig.OK },
	"a job that is moved":             func(e rig.Event) bool { return e.Op == rig.OpReschedule && e.Type == rig.OK },
	"a job that is replaced":          func(e rig.Event) bool { return e.Op == rig.OpReplace && e.Type == rig.OK },
	"a handler whose job is taken":    func(e rig.Event) bool { return e.Op == rig.OpLost && fleetLimits[e.Topic].Key.Running > 0 },
	"a buried job":                    is(rig.OpSettled, "buried"),
	"a job of a schedule":             func(e rig.Event) bool { return e.Op == rig.OpStart && strings.Contains(e.ID, "@") },
	"a job that is enqueued by Again": is(rig.OpSettled, "again"),
}

// mix waits until each server has begun some jobs of each client in each topic since now, as many
// jobs have run at the same time as may, and all of mixed has been seen.
func (f *fleet) mix(clients []*build) {
	f.t.Helper()
	const enough = 3
	from, missing := rig.Mono(), ""
	ok, err := f.history.Await(3*patient, func(events []rig.Event) bool {
		events = filter(events, func(e rig.Event) bool { return e.Mono >= from })
		missing = f.missing(events, clients, enough)
		return missing == ""
	})
	require.NoError(f.t, err)
	require.True(f.t, ok, "not within %v: %s", 3*patient, missing)
}

// missing says what mix waits for.
func (f *fleet) missing(events []rig.Event, clients []*build, enough int) string {
	counts, open, most := map[string]int{}, 0, 0
	for _, e := range events {
		switch {
		case e.Op == rig.OpStart:
			counts[fmt.Sprint(e.Proc, e.Topic, e.ID[:max(strings.LastIndex(e.ID, "-"), 0)])]++
			if e.Topic == "limited" {
				open++
				most = max(most, open)
			}
		case e.Op == rig.OpEnd && e.Topic == "limited":
			open = max(0, open-1) // of a job that was started before
		}
	}
	if limit := fleetLimits["limited"].Topic.Running; most < limit {
		return fmt.Sprintf("%d jobs at the same time, of %d", most, limit)
	}
	for _, w := range f.servers {
		for _, topic := range fleetTopics {
			for _, of := range clients {
				if n := counts[fmt.Sprint(w.Name(), topic, clientName(of))]; n < enough {
					return fmt.Sprintf("%d jobs of %s in topic %s of %s, of %d", n, clientName(of), topic, w.Name(), enough)
				}
			}
		}
	}
	for what, match := range mixed {
		if !slices.ContainsFunc(events, match) {
			return what
		}
	}
	return ""
}

// judgeHandlers counts the handlers that run at the same time. A handler counts if it had its lease
// to its end for certain, so one that was killed does not. If a build frees the place of a job that
// is cancelled or replaced at once, handlers of such jobs do not count.
func (f *fleet) judgeHandlers() {
	f.t.Helper()
	type step struct {
		at   int64
		by   int       // 1: a handler begins, -1: it ends
		what [2]string // topic and key
	}
	begun, ended, kept, stragglers := map[string]rig.Event{}, map[string]rig.Event{}, map[string]bool{}, 0
	for _, e := range f.events(func(e rig.Event) bool { return fleetLimits[e.Topic].Key.Running > 0 }) {
		run := fmt.Sprint(e.Proc, " ", e.Topic, " ", e.ID, " ", e.Inc, " ", e.Attempt, " ", e.Started)
		switch e.Op {
		case rig.OpStart:
			begun[run] = e
		case rig.OpLost:
			stragglers++
		case rig.OpEnd:
			ended[run] = e
		case rig.OpSettled:
			kept[run] = !slices.Contains([]string{"cancelled", "replaced", "lease_lost"}, e.Result)
		}
	}
	var steps []step
	for run, end := range ended {
		if end.Wall*1000 < end.Fence && (kept[run] || !f.before.frees) {
			what := [2]string{end.Topic, end.Key}
			steps = append(steps, step{begun[run].Mono, 1, what}, step{end.Mono, -1, what})
		}
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	open, most := map[[2]string]int{}, map[[2]string]int{}
	for _, s := range steps {
		for _, what := range slices.Compact([][2]string{{s.what[0], ""}, s.what}) { // a job without a key counts once
			open[what] += s.by
			most[what] = max(most[what], open[what])
		}
	}
	for what, n := range most {
		limit := fleetLimits[what[0]].Topic.Running
		if what[1] != "" {
			limit = fleetLimits[what[0]].Key.Running
		}
		if limit > 0 && n > limit {
			f.t.Errorf("%d handlers of topic %q, key %q, ran at the same time, and %d may", n, what[0], what[1], limit)
		}
	}
	f.t.Logf("%d handlers ran on after a call had taken their jobs (they count: %v); at the same time at most %v", stragglers, !f.before.frees, most)
	require.NotEmpty(f.t, most)
}

// clear checks all topics, deletes what is dead, stops the servers and removes the topics. Only
// what expires by itself is left.
func (f *fleet) clear() {
	f.t.Helper()
	ctx := context.Background()
	for _, topic := range fleetTopics {
		report, err := f.client.Inspector.Check(ctx, topic)
		require.NoError(f.t, err)
		require.Empty(f.t, report.Findings, topic)
		_, err = f.client.Apply(ctx, delayq.Query{Topic: topic, State: delayq.StateDead}, delayq.Delete())
		require.NoError(f.t, err)
	}
	f.end(f.servers...)
	// The heartbeats of killed servers would stay for a while, and keep the topics.
	require.NoError(f.t, f.direct.Del(ctx, f.prefix+":servers").Err())
	for _, topic := range fleetTopics {
		require.NoError(f.t, f.client.RemoveTopic(ctx, topic), topic)
	}
	state, err := f.state()
	require.NoError(f.t, err)
	for name, topic := range state.Topics {
		for part := range topic.Types {
			f.t.Errorf("topic %q has left its key %s", name, part)
		}
		for part, key := range topic.Keys {
			if key.TTL < 0 {
				f.t.Errorf("topic %q has left its key %s, which does not expire", name, part)
			}
		}
	}
	for name, key := range state.Other {
		if key.TTL < 0 {
			f.t.Errorf("the key %s is left, which does not expire", name)
		}
	}
}
