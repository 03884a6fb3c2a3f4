package tests

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// A readCall is a call of an Inspector. What it returns does not depend on the time of the call.
type readCall func(ctx context.Context, i *delayq.Inspector, topic string) (any, error)

// readings are the calls of an Inspector that ask Redis, except for Redis, on an ACLStage.
var readings = map[string]readCall{
	"Topics": func(ctx context.Context, i *delayq.Inspector, _ string) (any, error) { return i.Topics(ctx) },
	"Stats": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) {
		list, err := i.Stats(ctx)
		for at := range list {
			list[at].At = time.Time{}
		}
		return list, err
	},
	"Forecast": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) {
		return i.Forecast(ctx, topic, time.UnixMilli(1), 365*24*time.Hour, 100)
	},
	"History": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) {
		from := time.UnixMilli(1_700_000_000_000).Truncate(time.Hour)
		return i.History(ctx, topic, from, from.Add(720*time.Hour), time.Hour)
	},
	"DueWithin": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) {
		return i.DueWithin(ctx, time.UnixMilli(1), []time.Duration{time.Hour, 100 * 365 * 24 * time.Hour}, topic, "unused")
	},
	"Servers": func(ctx context.Context, i *delayq.Inspector, _ string) (any, error) { return i.Servers(ctx) },
	"Job": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) {
		return i.Job(ctx, topic, "running")
	},
	"Find": func(ctx context.Context, i *delayq.Inspector, _ string) (any, error) { return i.Find(ctx, "done") },
	"Schedules": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) {
		return i.Schedules(ctx, topic)
	},
	"Schedule": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) {
		return i.Schedule(ctx, topic, "s")
	},
	"Runs": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) {
		return i.Runs(ctx, topic, "s", 10)
	},
	"Check": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) { return i.Check(ctx, topic) },
	"Jobs": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) {
		var pages []*delayq.Page
		for _, state := range []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateRunning, delayq.StateDead, delayq.StateDone} {
			page, err := i.Jobs(ctx, delayq.Query{Topic: topic, State: state})
			if err != nil {
				return nil, err
			}
			page.At = time.Time{}
			pages = append(pages, page)
		}
		return pages, nil
	},
	"All": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) {
		var list []*delayq.JobInfo
		for info, err := range i.All(ctx, delayq.Query{Topic: topic, State: delayq.StateDead}) {
			if err != nil {
				return nil, err
			}
			list = append(list, info)
		}
		return list, nil
	},
	"Count": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) {
		n, _, err := i.Count(ctx, delayq.Query{Topic: topic, State: delayq.StateScheduled})
		return n, err
	},
	"Failures": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) {
		return i.Failures(ctx, topic, delayq.StateDead, 0)
	},
	"Key": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) {
		return i.Key(ctx, topic, "key")
	},
	"Keys": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) {
		return i.Keys(ctx, topic, "", 10)
	},
	"Undelivered": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) {
		return i.Undelivered(ctx, topic)
	},
	"Flow": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) {
		return noFlow(i.Flow(ctx, topic, "none"))
	},
	"FlowFrom": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) {
		return noFlow(i.FlowFrom(ctx, topic, "none", 1))
	},
	"Audit": func(ctx context.Context, i *delayq.Inspector, _ string) (any, error) { return i.Audit(ctx, 10) },
	"Explain": func(ctx context.Context, i *delayq.Inspector, topic string) (any, error) {
		codes := make(map[string][]delayq.ReasonCode)
		for _, id := range []string{"scheduled", "ready", "running", "dead", "done", "nowhere", "none"} {
			e, err := i.Explain(ctx, topic, id)
			if err != nil {
				return nil, err
			}
			for _, r := range e.Reasons {
				codes[id] = append(codes[id], r.Code)
			}
		}
		return codes, nil
	},
}

// noFlow is the reading of a flow that is not there.
func noFlow(info *delayq.FlowInfo, err error) (any, error) {
	if errors.Is(err, delayq.ErrNotFound) {
		err = nil
	}
	return info == nil, err
}

// readAll makes all readings.
func readAll(t *testing.T, i *delayq.Inspector, topic string) map[string]any {
	t.Helper()
	all := make(map[string]any, len(readings))
	for name, read := range readings {
		got, err := read(t.Context(), i, topic)
		require.NoError(t, err, name)
		all[name] = got
	}
	return all
}

// requireRead makes sure that the readings are those of an ACLStage.
func requireRead(t *testing.T, all map[string]any, topic string) {
	t.Helper()
	calls := reflect.TypeFor[*delayq.Inspector]()
	for i := range calls.NumMethod() {
		if name := calls.Method(i).Name; name != "Redis" && name != "Prefix" {
			require.Contains(t, all, name, "a call that nobody tries")
		}
	}
	require.Equal(t, []string{topic}, all["Topics"])
	stats := all["Stats"].([]delayq.TopicStats)
	require.Len(t, stats, 1)
	require.Equal(t, []int64{1, 2, 1, 1, 1, 2}, []int64{
		stats[0].Scheduled, stats[0].Ready, stats[0].Running, stats[0].Dead, stats[0].Done, stats[0].Overdue,
	}, "one of the ready ones has lost its place")
	require.Equal(t, 1, slices.IndexFunc(all["Forecast"].([]int64), func(n int64) bool { return n > 0 })/50, "in this century")
	require.Equal(t, [][]int64{{0, 1}, {0, 0}}, all["DueWithin"])
	require.Equal(t, map[delayq.Outcome]int64{delayq.OutcomeAcked: 3}, all["History"].(delayq.History).Steps[0].Outcomes)
	require.Equal(t, delayq.StateRunning, all["Job"].(*delayq.JobInfo).State)
	require.Len(t, all["Servers"], 1)
	require.Equal(t, topic, all["Find"].([]*delayq.JobInfo)[0].Topic)
	require.Len(t, all["Schedules"], 1)
	require.Equal(t, delayq.Every(time.Hour), all["Schedule"].(*delayq.ScheduleInfo).Spec)
	require.Equal(t, map[delayq.FindingKind]int{delayq.FindingNoPlace: 1}, all["Check"].(*delayq.CheckReport).Found)
	require.Len(t, all["Jobs"].([]*delayq.Page)[2].Jobs, 1, "running")
	require.Len(t, all["All"], 1)
	require.EqualValues(t, 1, all["Count"])
	require.EqualValues(t, 1, all["Failures"].(*delayq.Failures).Total)
	require.Empty(t, all["Undelivered"])
	require.Equal(t, "pause", all["Audit"].([]delayq.AuditEntry)[0].Action)
	require.Equal(t, map[string][]delayq.ReasonCode{
		"scheduled": {delayq.ReasonDueLater, delayq.ReasonTopicPaused, delayq.ReasonTopicPaused},
		"ready":     {delayq.ReasonTopicPaused, delayq.ReasonTopicPaused},
		"running":   {delayq.ReasonRunning},
		"dead":      {delayq.ReasonDead},
		"done":      {delayq.ReasonDone},
		"nowhere":   {delayq.ReasonOrphan, delayq.ReasonTopicPaused, delayq.ReasonTopicPaused},
		"none":      {delayq.ReasonNotFound},
	}, all["Explain"])
}

// sentVerbs notes the verbs of script calls, and which scripts were named.
type sentVerbs struct {
	mu    sync.Mutex
	verbs []string
	names map[string]bool
}

func (s *sentVerbs) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *sentVerbs) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.note(cmd)
		return next(ctx, cmd)
	}
}

func (s *sentVerbs) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			s.note(cmd)
		}
		return next(ctx, cmds)
	}
}

func (s *sentVerbs) note(cmd redis.Cmder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !strings.HasPrefix(cmd.Name(), "eval") {
		return
	}
	s.verbs = append(s.verbs, cmd.Name())
	for _, one := range script.All {
		if what := cmd.Args()[1]; what == one.Digest || what == one.Text {
			s.names[one.Name] = true
		}
	}
}

func (s *sentVerbs) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	verbs := slices.Compact(s.verbs)
	s.verbs = nil
	return verbs
}

// setUser changes the rights of a user.
func setUser(t *testing.T, admin *redis.Client, words ...string) {
	t.Helper()
	command := []any{"ACL", "SETUSER"}
	for _, word := range words {
		command = append(command, word)
	}
	require.NoError(t, admin.Do(t.Context(), command...).Err())
}

// needRO skips a test on a Redis without EVAL_RO.
func needRO(t *testing.T, admin *redis.Client) {
	t.Helper()
	if err := admin.EvalRO(t.Context(), "return 1", nil).Err(); err != nil {
		t.Skip("this Redis does not know EVAL_RO: ", err)
	}
}

// The scripts that are marked as reading are those that an Inspector calls. Each runs with EVAL_RO,
// in which Redis refuses every write. Nothing changes.
func TestReadingScriptsWriteNothing(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t, redistest.NoRoles...)
	admin := rs.Client(t)
	needRO(t, admin)
	actStage(t, admin, "topic")
	before := redistest.Dump(t, admin, script.DefaultPrefix)
	rdb := redis.NewClient(rs.Options())
	defer func() { require.NoError(t, rdb.Close()) }()
	sent := &sentVerbs{names: map[string]bool{}}
	rdb.AddHook(sent)
	insp := delayq.NewInspector(rdb)
	for _, verbs := range [][]string{{"evalsha_ro", "eval_ro"}, {"evalsha_ro"}} { // at first Redis has no script
		require.NoError(t, admin.ScriptFlush(t.Context()).Err())
		if len(verbs) == 1 {
			require.NoError(t, queuetest.LoadScripts(t.Context(), admin))
		}
		requireRead(t, readAll(t, insp, "topic"), "topic")
		for _, verb := range sent.take() {
			require.Contains(t, verbs, verb)
		}
	}
	require.Equal(t, before, redistest.Dump(t, admin, script.DefaultPrefix))
	for _, s := range script.All {
		require.Equal(t, s.Reads, sent.names[s.Name], "%s: marked, called by an Inspector", s.Name)
	}
	require.ErrorContains(t, admin.EvalRO(t.Context(), "return redis.call('DEL', KEYS[1])", []string{"x"}).Err(), "not allowed from read-only")
}

// The part of a record that the inspect script returns is enough for its due time.
func TestInspectReadsEnoughOfARecord(t *testing.T) {
	require.Contains(t, script.LuaFile("inspect"), fmt.Sprintf("string.sub(record, 1, %d)", record.DueHead))
	for _, o := range []record.Options{
		{}, {DueIn: 1}, {DueIn: record.MaxDelay}, {DueAt: record.MaxTime, DueIn: record.MaxDelay}, {DueAt: 7}, {Headers: map[string]string{"k": "v"}},
	} {
		head, tail, err := record.Encode(record.NewNonce(), &o, []byte("payload"))
		require.NoError(t, err)
		raw := record.Join(head, 1_700_000_000_000, tail)
		require.Equal(t, o.Due(1_700_000_000_000), record.DueOf(raw[:min(len(raw), record.DueHead)]))
	}
	for _, bad := range []string{"", "short", strings.Repeat("x", 100)} {
		require.Zero(t, record.DueOf(bad))
	}
}

// actStage is an ACLStage with an act in the audit, and with a server that is not gone soon.
func actStage(t *testing.T, admin *redis.Client, topic string) *hand.Hand {
	t.Helper()
	h := queuetest.ACLStage(t, admin, script.DefaultPrefix, topic)
	require.NoError(t, delayq.NewClient(h.RDB, delayq.Prefix(h.Prefix())).Pause(delayq.WithActor(t.Context(), "ann"), topic, delayq.Pause{By: "ann"}))
	beat := fmt.Sprint(time.Now().Add(time.Hour).UnixMilli(), ` {"state":"running","topics":{"`, topic, `":{"workers":7}}}`)
	require.NoError(t, admin.HSet(t.Context(), script.ServersKey(script.DefaultPrefix), "server", beat).Err())
	return h
}

// Redis 6.2 does not know EVALSHA_RO, and a user may have no right to it. An Inspector finds that
// out once.
func TestInspectorWithoutReadOnlyScripts(t *testing.T) {
	t.Parallel()
	needRO(t, redistest.Start(t, redistest.NoRoles...).Client(t))
	for name, c := range map[string]struct{ args, rights []string }{
		"unknown": {args: []string{"--rename-command", "EVALSHA_RO", "", "--rename-command", "EVAL_RO", ""}},
		"refused": {rights: []string{"-evalsha_ro", "-eval_ro"}},
		"text":    {rights: []string{"-eval_ro"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rs := redistest.Start(t, append(c.args, redistest.NoRoles...)...)
			admin := rs.Client(t)
			setUser(t, admin, append([]string{"default"}, c.rights...)...)
			actStage(t, admin, "topic")
			require.NoError(t, admin.ScriptFlush(t.Context()).Err())
			rdb := redis.NewClient(rs.Options())
			defer func() { require.NoError(t, rdb.Close()) }()
			sent := &sentVerbs{names: map[string]bool{}}
			rdb.AddHook(sent)
			insp := delayq.NewInspector(rdb)
			_, err := insp.Stats(t.Context())
			require.NoError(t, err)
			if name == "text" {
				require.Equal(t, []string{"evalsha_ro", "eval_ro", "eval"}, sent.take())
			} else {
				require.Equal(t, []string{"evalsha_ro", "evalsha", "eval"}, sent.take())
			}
			requireRead(t, readAll(t, insp, "topic"), "topic")
			require.Subset(t, []string{"evalsha", "eval"}, sent.take())
		})
	}
}

// An Inspector gives the same answers as the inspector of the ACL file, on a replica, and without
// the rights to commands that it does without.
func TestInspectorReadsTheSameEverywhere(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t, redistest.NoRoles...)
	admin := rs.Client(t)
	actStage(t, admin, "topic")
	replica := redistest.Replica(t, rs, redistest.NoRoles...)
	other := replica.Client(t)
	require.NoError(t, admin.Do(t.Context(), "WAIT", 1, 60_000).Err())
	want := readAll(t, delayq.NewInspector(admin), "topic")
	requireRead(t, want, "topic")
	before := redistest.Dump(t, admin, script.DefaultPrefix)

	users := [][]string{aclUser(t, "inspector")}
	if readOnly := readOnlyUser(users[0]); admin.EvalRO(t.Context(), "return 1", nil).Err() == nil {
		users = append(users, readOnly)
	}
	for _, user := range users {
		for on, of := range map[*redistest.Server]*redis.Client{rs: admin, replica: other} {
			for without, missing := range map[string][]string{
				"":                  {"FSync", "Snapshots"},
				"-info":             {"AOF", "Clients", "Eviction", "FSync", "LastSnapshot", "MaxMemory", "Mode", "Replicas", "Role", "Snapshots", "UsedMemory", "Version"},
				"-type":             {"FSync", "Snapshots"},
				"+config|get":       nil,
				"-hello":            {"FSync", "Snapshots"},
				"-client":           {"FSync", "Snapshots"},
				"-info +config|get": {"AOF", "Clients", "Eviction", "LastSnapshot", "MaxMemory", "Mode", "Replicas", "Role", "UsedMemory", "Version"},
			} {
				setUser(t, of, slices.Concat(user[:1], []string{"reset"}, user[1:], strings.Fields(without))...)
				rdb := queuetest.ACLClient(t, on, "inspector")
				insp := delayq.NewInspector(rdb)
				require.Equal(t, want, readAll(t, insp, "topic"), "%v without %s", user, without)
				info, err := insp.Redis(t.Context())
				require.NoError(t, err)
				require.Equal(t, missing, info.Missing, "%v without %s", user, without)
				require.Equal(t, on == replica && !slices.Contains(missing, "Role"), info.Role == "slave")
				require.Positive(t, info.RoundTrip)
			}
		}
	}
	require.Equal(t, before, redistest.Dump(t, admin, script.DefaultPrefix))

	// No command that writes, and none to another prefix.
	require.NoError(t, admin.Do(t.Context(), "ACL", "LOG", "RESET").Err())
	client := delayq.NewClient(queuetest.ACLClient(t, rs, "inspector"))
	_, err := client.Enqueue(t.Context(), "topic", "", nil)
	require.ErrorContains(t, err, "NOPERM")
	_, err = client.Dequeue(t.Context(), "topic", "ready")
	require.ErrorContains(t, err, "NOPERM")
	require.Equal(t, before, redistest.Dump(t, admin, script.DefaultPrefix))
}

// aclUser returns the words of a user of the ACL file, from the name on.
func aclUser(t *testing.T, role string) []string {
	t.Helper()
	for line := range strings.Lines(redistest.File(t, hand.ACLFile)) {
		if words := strings.Fields(line); words[1] == "delayq-"+role {
			return words[1:]
		}
	}
	t.Fatal(role)
	return nil
}

// readOnlyUser changes a user as docs/security.md says for Redis 7.
func readOnlyUser(user []string) []string {
	changed := slices.Clone(user)
	for i, word := range changed {
		switch {
		case word == "+eval":
			changed[i] = "+eval_ro"
		case word == "+evalsha":
			changed[i] = "+evalsha_ro"
		case strings.HasPrefix(word, "~"):
			changed[i] = "%R" + word
		}
	}
	return changed
}
