package lua_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// aclGranted reads which commands the ACL file gives to each role.
func aclGranted(t *testing.T) map[string][]string {
	granted := map[string][]string{}
	for line := range strings.Lines(redistest.File(t, hand.ACLFile)) {
		words := strings.Fields(line)
		require.Equal(t, "user", words[0])
		role, ok := strings.CutPrefix(words[1], "delayq-")
		require.True(t, ok)
		for _, word := range words {
			if command, ok := strings.CutPrefix(word, "+"); ok {
				granted[role] = append(granted[role], command)
			}
		}
		require.True(t, slices.IsSorted(granted[role]), "%s: sorted", role)
	}
	require.Equal(t, slices.Sorted(slices.Values(redistest.RoleNames)), slices.Sorted(maps.Keys(granted)))
	return granted
}

// The users of the ACL file are granted what the whole of delayq needs, and no command
// beyond. (J10)
func TestACLGrantsWhatIsNeededAndNoMore(t *testing.T) {
	t.Parallel()
	file := redistest.Path(hand.ACLFile)
	rs := redistest.Start(t, "--aclfile", file)
	admin := rs.Client(t)

	var mu sync.Mutex
	owner := map[string]string{} // address of a connection → role
	clients := map[string]redis.UniversalClient{}
	for _, role := range redistest.RoleNames {
		opt := rs.Options()
		opt.Username, opt.Password = "delayq-"+role, "change-me-"+role
		opt.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err == nil {
				mu.Lock()
				owner[conn.LocalAddr().String()] = role
				mu.Unlock()
			}
			return conn, err
		}
		rdb := redis.NewClient(opt)
		t.Cleanup(func() { _ = rdb.Close() })
		clients[role] = rdb
	}

	seen := watchCommands(t, admin, rs.Addr())
	tour(t, clients["producer"], clients["worker"], clients["operator"], clients["inspector"])
	used := map[string][]string{}
	for _, command := range seen() {
		mu.Lock()
		role := owner[command.from]
		mu.Unlock()
		// These need no right: everybody may say who he is.
		if role != "" && command.name != "hello" && command.name != "auth" {
			used[role] = append(used[role], command.name)
		}
	}
	for role, granted := range aclGranted(t) {
		slices.Sort(used[role])
		require.Equal(t, granted, slices.Compact(used[role]), "%s: granted, used", role)
	}

	// With WaitReplicas a producer needs one right more. There is no replica here.
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "delayq-producer", "+wait").Err())
	waiting := newClient(clients["producer"], script.DefaultPrefix, delayq.WaitReplicas(1, time.Millisecond))
	_, err := waiting.Enqueue(t.Context(), "tour", "replicated", nil)
	require.ErrorIs(t, err, delayq.ErrNotReplicated)
	nothingDenied(t, admin)
}

// On a cluster each user needs two rights more.
func TestACLOnACluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	c := redistest.StartCluster(t, 3, 0)
	nodes := make([]*redis.Client, 0, 3)
	for _, addr := range c.Addrs() {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = rdb.Close() })
		nodes = append(nodes, rdb)
	}
	clients := map[string]redis.UniversalClient{}
	for line := range strings.Lines(redistest.File(t, hand.ACLFile)) {
		setuser := []any{"ACL", "SETUSER"}
		for _, word := range append(strings.Fields(line)[1:], "+cluster|slots", "+command") {
			setuser = append(setuser, word)
		}
		for _, rdb := range nodes {
			require.NoError(t, rdb.Do(t.Context(), setuser...).Err())
		}
		role := strings.TrimPrefix(strings.Fields(line)[1], "delayq-")
		opt := c.Options()
		opt.Username, opt.Password = "delayq-"+role, "change-me-"+role
		rdb := redis.NewClusterClient(opt)
		t.Cleanup(func() { _ = rdb.Close() })
		clients[role] = rdb
	}
	tour(t, clients["producer"], clients["worker"], clients["operator"], clients["inspector"])
	for _, rdb := range nodes {
		nothingDenied(t, rdb)
	}
}

func nothingDenied(t *testing.T, admin *redis.Client) {
	t.Helper()
	denied, err := admin.ACLLog(context.Background(), 100).Result()
	require.NoError(t, err)
	for _, entry := range denied {
		require.True(t, redistest.Optional(entry.Object), "denied: %+v", *entry)
	}
}

// A seenCommand is a command that Redis has carried out, by itself or within a script, for a
// connection.
type seenCommand struct{ from, name string }

var monitored = regexp.MustCompile(`^\+[\d.]+ \[\d+ ([^\]]+)\] "(\w+)"`)

// watchCommands begins to note all commands, and returns a function that ends it and gives what was
// noted.
func watchCommands(t *testing.T, admin *redis.Client, addr string) func() []seenCommand {
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, "MONITOR\r\n")
	require.NoError(t, err)
	lines := bufio.NewReader(conn)
	_, err = lines.ReadString('\n')
	require.NoError(t, err)

	const last = "that was all"
	noted := make(chan []seenCommand, 1)
	go func() {
		var list []seenCommand
		from := ""
		for {
			line, err := lines.ReadString('\n')
			if err != nil || strings.Contains(line, last) {
				noted <- list
				return
			}
			if m := monitored.FindStringSubmatch(line); m != nil {
				if m[1] != "lua" { // what follows from a script is that connection's
					from = m[1]
				}
				list = append(list, seenCommand{from, strings.ToLower(m[2])})
			}
		}
	}()
	return func() []seenCommand {
		require.NoError(t, admin.Echo(context.Background(), last).Err())
		return <-noted
	}
}

// Every script is given the keys, and as many of them, as its header says.
func TestProseScriptsGetTheKeysOfTheirHeaders(t *testing.T) {
	t.Parallel()
	r := embedded.New()
	defer r.Close()
	rdb := r.Client()
	defer func() { require.NoError(t, rdb.Close()) }()
	names := map[string]string{} // digest → script
	for name, digest := range delayq.Scripts() {
		names[digest] = name
	}
	var mu sync.Mutex
	given := map[string][][]string{}
	r.Server().SetPreHook(func(_ *server.Peer, command string, args ...string) bool {
		if strings.EqualFold(command, "evalsha") {
			mu.Lock()
			defer mu.Unlock()
			given[names[args[0]]] = append(given[names[args[0]]], args[1:])
		}
		return false
	})
	tour(t, rdb, rdb, rdb, rdb)

	mu.Lock()
	defer mu.Unlock()
	for name := range delayq.Scripts() {
		h := redistest.HeaderOf(t, name)
		require.NotEmpty(t, given[name], "%s is part of the tour", name)
		for _, args := range given[name] {
			n, err := strconv.Atoi(args[0])
			require.NoError(t, err)
			keys := h.Keys
			if h.Rest["keys"] > 0 { // the header lists those of one topic, and there may be several
				keys = eachKey(t, name)
				keys = slices.Repeat(keys, n/len(keys))
			}
			require.Len(t, keys, n, name)
			for i, key := range args[1 : 1+n] {
				want := regexp.QuoteMeta(keys[i])
				if want == "receipt" {
					want = `(receipt|taken):\w+`
				}
				require.Regexp(t, `:`+want+`$`, key, "%s: KEYS[%d]", name, i+1)
			}
			require.GreaterOrEqual(t, len(args)-1-n, len(h.Args)-len(h.Rest), name)
		}
	}
}

// tour goes through everything that delayq can do, with the rights of four clients: each
// transition, on each kind of job, once at least.
func tour(t *testing.T, producer, worker, operator, inspector redis.UniversalClient) {
	t.Helper()
	const topic = "tour"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, o := newClient(producer, script.DefaultPrefix), newClient(operator, script.DefaultPrefix)
	k := script.NewKeys(script.DefaultPrefix, topic)
	soon := delayq.Backoff(time.Millisecond, time.Second)

	enqueue := func(id string, opts ...delayq.JobOption) {
		t.Helper()
		_, err := p.Enqueue(ctx, topic, id, []byte(id), opts...)
		require.NoError(t, err)
	}

	// A server that died: right after a take, and between a wait and a take.
	enqueue("lapse")
	take := rawScript(t, "take")
	require.NoError(t, take.Run(ctx, worker, rawKeys(t, "take", k), "1", "1", 1, script.CallBytes, 1, 1, "head", "", 0, 0, 0, 0, 0).Err())
	enqueue("held")
	for _, number := range []string{"2", "3"} { // the second time as if the answer had been lost
		require.NoError(t, take.Run(ctx, worker, rawKeys(t, "take", k), number, "2", 1, script.CallBytes, 60_000, 1, "head", "", 0, 0, 0, 0, 0).Err())
	}
	state, err := p.Dequeue(ctx, topic, "held")
	require.NoError(t, err)
	require.Equal(t, delayq.StateRunning, state)
	enqueue("handed")
	require.NoError(t, worker.BLMove(ctx, k.Ready, k.Handoff, "LEFT", "RIGHT", time.Second).Err())
	require.NoError(t, rawScript(t, "promote").Run(ctx, worker, rawKeys(t, "promote", k), 10, 1, script.ControlChannel(script.DefaultPrefix), topic).Err())

	for _, client := range []*client{p, o} { // its entry leaves ready with it
		enqueue("unwanted")
		state, err := client.Dequeue(ctx, topic, "unwanted")
		require.NoError(t, err)
		require.Equal(t, delayq.StateReady, state)
	}

	enqueue("ok", delayq.Retention(time.Hour))
	enqueue("brief", delayq.Retention(time.Millisecond))
	enqueue("soon", delayq.ProcessIn(20*time.Millisecond))
	enqueue("expire", delayq.ProcessIn(time.Millisecond), delayq.ExpireIn(2*time.Millisecond))
	enqueue("later", delayq.ProcessIn(time.Hour))
	enqueue("retry", soon)
	enqueue("bury", delayq.Retry(0))
	enqueue("snooze")
	enqueue("again", delayq.Retention(time.Hour))
	enqueue("moved", delayq.ProcessIn(time.Hour))
	_, err = p.Enqueue(ctx, topic, "later", nil)
	require.ErrorIs(t, err, delayq.ErrDuplicate)
	enqueue("later", delayq.ProcessIn(time.Hour), delayq.Replace())
	enqueue("keyed", delayq.Key("key"), delayq.Priority(time.Minute))
	for _, client := range []redis.UniversalClient{operator, inspector} {
		keys, err := delayq.NewInspector(client).Keys(ctx, topic, "", 10)
		require.NoError(t, err)
		require.Len(t, keys, 1)
		page, err := delayq.NewInspector(client).Jobs(ctx, delayq.Query{Topic: topic, State: delayq.StateReady, Latest: true, Key: "key"})
		require.NoError(t, err)
		require.Len(t, page.Jobs, 1)
	}
	enqueue("first", delayq.Key("ordered"))
	enqueue("second", delayq.Key("ordered"))
	bar(ctx, worker, k, "ordered", "first")
	for _, id := range []string{"first", "second"} {
		_, err := p.Dequeue(ctx, topic, id)
		require.NoError(t, err)
	}
	results, err := p.EnqueueBatch(ctx, []delayq.NewJob{{Topic: topic, ID: "long"}, {Topic: topic, ID: "cut"}, {Topic: topic, ID: "replaced", Payload: []byte("replaced")}})
	require.NoError(t, err)
	require.Len(t, results, 3)
	require.NoError(t, p.Reschedule(ctx, topic, "moved", delayq.ProcessIn(30*time.Minute)))
	require.NoError(t, p.Reschedule(ctx, topic, "moved", delayq.ProcessIn(20*time.Millisecond)))
	_, err = p.Get(ctx, topic, "moved")
	require.NoError(t, err)
	state, err = p.Dequeue(ctx, topic, "later")
	require.NoError(t, err)
	require.Equal(t, delayq.StateScheduled, state)
	_, err = p.Dequeue(ctx, topic, "later")
	require.ErrorIs(t, err, delayq.ErrNotFound)

	// What a failover can lose, put right by a server and by a person.
	enqueue("astray", delayq.ProcessIn(time.Hour))
	for _, doctor := range []*client{newClient(worker, script.DefaultPrefix), o} {
		require.NoError(t, worker.ZRem(ctx, k.Bucket, "astray").Err())
		report, err := doctor.Repair(ctx, topic)
		require.NoError(t, err)
		require.Equal(t, []delayq.Finding{{Key: "pool", ID: "astray", Kind: delayq.FindingNoPlace, Repaired: true}}, report.Findings)
	}

	// The inspector finds the same, and leaves it.
	insp := delayq.NewInspector(inspector)
	require.NoError(t, worker.ZRem(ctx, k.Bucket, "astray").Err())
	for _, look := range []*delayq.Inspector{insp, o.insp} {
		report, err := look.Check(ctx, topic)
		require.NoError(t, err)
		require.Equal(t, []delayq.Finding{{Key: "pool", ID: "astray", Kind: delayq.FindingNoPlace}}, report.Findings)
	}
	_, err = o.Repair(ctx, topic)
	require.NoError(t, err)

	// A key of a wrong type, which each of them can name.
	spoilt := script.NewKeys(script.DefaultPrefix, "spoilt")
	require.NoError(t, worker.Set(ctx, spoilt.Bucket, "a slip", 0).Err())
	_, err = p.Enqueue(ctx, "spoilt", "", nil, delayq.ProcessIn(time.Hour))
	require.ErrorContains(t, err, spoilt.Bucket)
	_, err = p.Enqueue(ctx, topic, "overdue", nil)
	require.NoError(t, err)
	for _, i := range []*delayq.Inspector{insp, delayq.NewInspector(worker), o.insp} {
		_, err = i.Stats(ctx, "spoilt")
		require.ErrorContains(t, err, spoilt.Bucket)
		stats, err := i.Stats(ctx, topic)
		require.NoError(t, err)
		require.NotZero(t, stats[0].Overdue)
	}
	_, err = p.Dequeue(ctx, topic, "overdue")
	require.NoError(t, err)
	require.NoError(t, worker.Del(ctx, spoilt.Bucket).Err())

	// Schedules: of each policy, and one that is changed, paused and removed.
	const timed = "timed"
	tick := func(name string, every time.Duration, opts ...delayq.ScheduleOption) {
		t.Helper()
		require.NoError(t, p.Schedule(ctx, timed, name, delayq.Every(every), []byte(name), opts...))
	}
	for range 2 {
		tick("tick", 20*time.Millisecond, delayq.OverlapAllow, delayq.MissedCatchUp(2))
	}
	tick("long", 20*time.Millisecond, delayq.OverlapCancelPrevious)
	tick("queued", 20*time.Millisecond, delayq.OverlapQueueOne, delayq.MaxRuns(2))
	tick("late", 20*time.Millisecond, delayq.ProcessIn(time.Millisecond), delayq.MaxRuns(1))
	tick("far", time.Hour)
	tick("far", 500*time.Hour)

	events := &tourEvents{happened: make(chan string, 10_000), seen: map[string]int{}, once: map[string]bool{}}
	server := delayq.NewServer(worker, delayq.Hooks(events), delayq.Tick(10*time.Millisecond), delayq.Lease(2*time.Second), delayq.Drain(0),
		delayq.Logger(slog.New(slog.DiscardHandler)), delayq.Concurrency(20))
	server.HandlerFunc(topic, func(ctx context.Context, job *delayq.Job) error {
		switch {
		case job.ID == "long", job.ID == "cut", job.ID == "replaced" && job.Attempt == 1 && string(job.Payload) == job.ID:
			<-ctx.Done()
			return ctx.Err()
		case job.ID == "retry" && !events.has("retried retry"): // on a machine that stands still, the lease of the first attempt may be lost
			return errors.New("once more")
		case job.ID == "bury" && job.Attempt == 1, job.ID == "dead":
			return errors.New("no more")
		case job.ID == "snooze" && job.Lateness() >= 0 && !events.has("snoozed snooze"):
			return delayq.Snooze(time.Millisecond)
		case job.ID == "again" && string(job.Payload) == job.ID:
			return delayq.Again(nil, delayq.ProcessIn(time.Millisecond))
		}
		return nil
	})
	server.HandlerFunc("elsewhere.*", func(context.Context, *delayq.Job) error { return nil }) // reads the topics
	release := make(chan struct{})
	server.HandlerFunc(timed, func(ctx context.Context, job *delayq.Job) error {
		switch {
		case job.Schedule == "long" && job.Attempt == 1, job.Schedule == "queued":
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-release:
			}
		}
		return nil
	})
	const crowded = "crowded" // a topic whose jobs wait for a slot until they are cancelled
	require.NoError(t, p.Schedule(ctx, crowded, "crowd", delayq.Every(20*time.Millisecond), nil, delayq.OverlapCancelPrevious))
	leave := make(chan struct{})
	server.HandlerFunc(crowded, func(context.Context, *delayq.Job) error {
		<-leave
		return nil
	}, delayq.Concurrency(1))
	const lonely = "lonely" // a topic with a single lease
	server.HandlerFunc(lonely, func(ctx context.Context, _ *delayq.Job) error {
		<-ctx.Done()
		return ctx.Err()
	}, delayq.DefaultLimits(delayq.Limits{Running: 1000}))
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Run(run) }()
	events.await(t, ctx, "acked lapse", "acked handed", "acked ok", "acked brief", "acked soon", "acked moved", "expired expire",
		"retried retry", "acked retry", "snoozed snooze", "acked snooze", "again again", "acked again", "buried bury", "started long", "started cut",
		"started replaced", "script heartbeat", "script extend")

	events.await(t, ctx, "acked schedule tick", "cancelled schedule long", "acked schedule late")
	for waits := false; !waits; {
		info, err := p.insp.Schedule(ctx, timed, "queued")
		require.NoError(t, err)
		waits = !info.WaitingSlot.IsZero()
	}
	close(release)
	events.await(t, ctx, "acked schedule queued")
	for cancelled := int64(0); cancelled < 3; {
		info := queuetest.StatsOf(t, o.insp, crowded)
		cancelled = info.Counters["cancelled"]
	}
	require.NoError(t, p.Unschedule(ctx, crowded, "crowd"))
	close(leave)

	// What a producer and an operator do while it runs.
	for _, client := range []*client{p, o} {
		_, err := client.Trigger(ctx, timed, "far")
		require.NoError(t, err)
	}
	events.await(t, ctx, "acked schedule far")
	require.NoError(t, o.EditSchedule(ctx, timed, "far", func(d *delayq.ScheduleDefinition) error {
		d.EditedBy = "me"
		d.Spec = delayq.Every(2 * time.Hour)
		return nil
	}))
	require.NoError(t, o.PauseSchedule(ctx, timed, "far"))
	require.NoError(t, o.ResumeSchedule(ctx, timed, "far"))
	for _, i := range []*delayq.Inspector{o.insp, insp} {
		list, err := i.Schedules(ctx, timed)
		require.NoError(t, err)
		require.Len(t, list, 5)
		runs, err := i.Runs(ctx, timed, "tick", 10)
		require.NoError(t, err)
		require.NotEmpty(t, runs)
	}
	for _, name := range []string{"tick", "long", "late"} {
		require.NoError(t, p.Unschedule(ctx, timed, name))
	}
	require.NoError(t, o.Unschedule(ctx, timed, "queued"))
	_, err = p.Enqueue(ctx, topic, "replaced", nil, delayq.Replace())
	require.NoError(t, err)
	events.await(t, ctx, "lease_lost replaced", "acked replaced")
	for i, client := range []*client{p, o} {
		id := fmt.Sprint(lonely, i)
		_, err := p.Enqueue(ctx, lonely, id, nil)
		require.NoError(t, err)
		events.await(t, ctx, "started "+id)
		state, err := client.Dequeue(ctx, lonely, id)
		require.NoError(t, err)
		require.Equal(t, delayq.StateRunning, state)
		events.await(t, ctx, "cancelled "+id)
	}
	require.NoError(t, o.SetLimits(ctx, topic, delayq.Limits{Running: 100, Rate: delayq.Per(1000, time.Second), RunningPerKey: 100}))
	require.NoError(t, o.SetKeyLimits(ctx, topic, "key", delayq.KeyLimits{Weight: 10, Running: 10, Rate: delayq.Per(1000, time.Second)}))
	_, err = p.Enqueue(ctx, topic, "much later", nil, delayq.Key("held"), delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	require.NoError(t, p.SetPriority(ctx, topic, "much later", time.Hour))
	_, err = p.Dequeue(ctx, topic, "much later")
	require.NoError(t, err)
	require.NoError(t, o.HoldKey(ctx, topic, "held", 100*time.Millisecond))
	_, err = p.Enqueue(ctx, topic, "of a held key", nil, delayq.Key("held"))
	require.NoError(t, err)
	events.await(t, ctx, "acked of a held key")
	require.NoError(t, o.PauseKey(ctx, topic, "key"))
	require.NoError(t, o.ResumeKey(ctx, topic, "key"))
	require.NoError(t, o.Hold(ctx, topic, time.Hour, "because"))
	require.NoError(t, o.EndHold(ctx, topic))
	require.NoError(t, o.Pause(ctx, topic, delayq.Pause{By: "me", Reason: "because", For: time.Hour}))
	info := queuetest.StatsOf(t, o.insp, topic)
	require.True(t, info.Paused)
	require.NoError(t, o.Resume(ctx, topic, "me"))
	require.NoError(t, o.ResumeAll(delayq.WithActor(ctx, "me"), topic))
	for _, i := range []*delayq.Inspector{o.insp, insp} {
		topics, err := i.Stats(ctx)
		require.NoError(t, err)
		require.Len(t, topics, 4)
		require.Equal(t, crowded, topics[0].Topic)
		require.Equal(t, 1, topics[0].Servers)
		servers, err := i.Servers(ctx)
		require.NoError(t, err)
		require.Len(t, servers, 1)
		_, err = i.History(ctx, topic, time.Now().Add(-time.Hour), time.Now(), time.Minute)
		require.NoError(t, err)
		_, err = i.History(ctx, topic, time.Now().Add(-time.Hour), time.Now(), time.Hour)
		require.NoError(t, err)
		_, err = i.Forecast(ctx, topic, time.Now(), time.Minute, 60)
		require.NoError(t, err)
		found, err := i.Find(ctx, "ok")
		require.NoError(t, err)
		require.Len(t, found, 1)
		acts, err := i.Audit(ctx, 10)
		require.NoError(t, err)
		require.Equal(t, "me", acts[0].Actor)
		_, err = i.Keys(ctx, topic, "", 10)
		require.NoError(t, err)
		why, err := i.Explain(ctx, topic, "ok")
		require.NoError(t, err)
		require.Equal(t, delayq.ReasonDone, why.Reasons[0].Code)
		_, err = i.Explain(ctx, topic, "none")
		require.NoError(t, err)
	}
	_, err = insp.Redis(ctx)
	require.NoError(t, err)
	for _, state := range []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateRunning, delayq.StateDead, delayq.StateDone} {
		require.NoError(t, jobs(state)(ctx, o, topic))
		require.NoError(t, jobs(state)(ctx, newClient(inspector, script.DefaultPrefix), topic))
	}
	done, err := o.Get(ctx, topic, "ok")
	require.NoError(t, err)
	require.Equal(t, delayq.StateDone, done.State)
	require.NoError(t, o.Delete(ctx, topic, "ok"))
	require.ErrorIs(t, o.Reschedule(ctx, topic, "long", delayq.ProcessIn(time.Hour)), delayq.ErrRunning)
	state, err = o.Dequeue(ctx, topic, "long")
	require.NoError(t, err)
	require.Equal(t, delayq.StateRunning, state)
	events.await(t, ctx, "cancelled long")
	_, err = o.Enqueue(ctx, "moved there", "by the operator", nil, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	require.NoError(t, o.Revive(ctx, topic, "bury"))
	events.await(t, ctx, "acked bury")
	enqueue("far", delayq.ProcessIn(time.Hour))
	require.NoError(t, o.Reschedule(ctx, topic, "far", delayq.ProcessIn(500*time.Millisecond)))
	require.NoError(t, o.Reschedule(ctx, topic, "far", delayq.ProcessIn(0)))
	events.await(t, ctx, "acked far")
	for _, due := range []delayq.DueOption{delayq.ProcessIn(time.Hour), delayq.ProcessIn(0)} {
		_, err = p.Enqueue(ctx, "emptied", "unwanted", nil, due)
		require.NoError(t, err)
		why, err := insp.Explain(ctx, "emptied", "unwanted")
		require.NoError(t, err)
		require.Equal(t, delayq.ReasonNoServer, why.Reasons[len(why.Reasons)-1].Code)
		require.NoError(t, o.Bury(ctx, "emptied", "unwanted", "because"))
		require.ErrorIs(t, o.RemoveTopic(ctx, "emptied"), delayq.ErrNotEmpty)
		_, err = o.Dequeue(ctx, "emptied", "unwanted")
		require.NoError(t, err)
	}
	require.NoError(t, o.RemoveTopic(ctx, "emptied"))
	enqueue("dead", delayq.Retry(0))
	events.await(t, ctx, "buried dead")

	// What a server does every ten seconds, after half a minute without a message, and every
	// minute.
	prune := rawScript(t, "prune")
	require.NoError(t, prune.Run(ctx, worker, rawKeys(t, "prune", k), "1", 0, 1000, 10).Err())
	require.NoError(t, rawScript(t, "survey").Run(ctx, worker, rawTopics(t, "survey", k), 0, 1000).Err())
	require.NoError(t, rawScript(t, "watch").Run(ctx, worker, rawTopics(t, "watch", k), "another").Err())
	require.NoError(t, rawScript(t, "ring").Run(ctx, worker, rawKeys(t, "ring", k), script.ControlChannel(script.DefaultPrefix), topic, "another", 1).Err())
	require.NoError(t, worker.Ping(ctx).Err())
	require.NoError(t, worker.HScan(ctx, script.ServersKey(script.DefaultPrefix), 0, "", 100).Err())

	events.stopping.Store(true)
	stop()
	require.NoError(t, <-ended)
	events.await(t, ctx, "returned cut")
	require.Equal(t, delayq.StateReady, must(o.Get(ctx, topic, "cut")).State)
	require.Empty(t, must(o.insp.Servers(ctx)))
	_, err = o.Get(ctx, topic, "brief")
	require.ErrorIs(t, err, delayq.ErrNotFound)
	_, err = o.Get(ctx, topic, "dead")
	require.ErrorIs(t, err, delayq.ErrNotFound)
}

// rawScript is a script as another language would run it.
func rawScript(t *testing.T, name string) *redis.Script {
	t.Helper()
	at := slices.IndexFunc(script.All, func(s *script.Script) bool { return s.Name == name })
	require.GreaterOrEqual(t, at, 0, name)
	return redis.NewScript(fmt.Sprint(script.All[at].Text))
}

// rawTopics are the keys of a script about several topics, for these.
func rawTopics(t *testing.T, name string, topics ...*script.Keys) (list []string) {
	for _, k := range topics {
		for _, key := range eachKey(t, name) {
			list = append(list, k.Root+key)
		}
	}
	return list
}

// eachKey lists the keys of each topic in the header of a script about several topics.
func eachKey(t *testing.T, name string) []string {
	_, list, found := strings.Cut(redistest.HeaderOf(t, name).Text, " keys  ")
	require.True(t, found, name)
	list = regexp.MustCompile(`\n--\s+`).ReplaceAllString(list, " ")
	list, _, _ = strings.Cut(list, " of each topic")
	return strings.Split(list, ", ")
}

// rawKeys are the keys that the header of a script asks for.
func rawKeys(t *testing.T, name string, k *script.Keys) (list []string) {
	for _, key := range redistest.HeaderOf(t, name).Keys {
		switch {
		case key == "receipt" && name == "take":
			key = "taken:dead"
		case key == "receipt":
			key = "receipt:dead"
		}
		list = append(list, k.Root+key)
	}
	return list
}

// tourEvents is a hook that tells of everything.
type tourEvents struct {
	happened chan string
	seen     map[string]int

	mu   sync.Mutex
	once map[string]bool

	stopping atomic.Bool
}

// Replaced counts as LeaseLost, which it is if an extension is faster than the announcement.
func (e *tourEvents) Replaced(event delayq.RunEvent) {
	event.Outcome = delayq.OutcomeLeaseLost
	e.run(event)
}

func (e *tourEvents) run(event delayq.RunEvent) {
	e.mu.Lock()
	e.once[string(event.Outcome)+" "+event.ID] = true
	e.mu.Unlock()
	e.happened <- string(event.Outcome) + " " + event.ID
	if s, ok := record.DecodeSlotID(event.ID); ok {
		e.happened <- string(event.Outcome) + " schedule " + s.Schedule
	}
}
func (e *tourEvents) Started(event delayq.RunEvent)   { e.happened <- "started " + event.ID }
func (e *tourEvents) Done(event delayq.RunEvent)      { e.run(event) }
func (e *tourEvents) Again(event delayq.RunEvent)     { e.run(event) }
func (e *tourEvents) Retried(event delayq.RunEvent)   { e.run(event) }
func (e *tourEvents) Snoozed(event delayq.RunEvent)   { e.run(event) }
func (e *tourEvents) Buried(event delayq.RunEvent)    { e.run(event) }
func (e *tourEvents) Cancelled(event delayq.RunEvent) { e.run(event) }
func (e *tourEvents) LeaseLost(event delayq.RunEvent) { e.run(event) }
func (e *tourEvents) Expired(event delayq.RunEvent)   { e.run(event) }
func (e *tourEvents) Returned(event delayq.RunEvent)  { e.run(event) }

func (e *tourEvents) Script(event delayq.ScriptEvent) {
	var slow net.Error
	switch {
	case event.Err == nil:
		e.happened <- "script " + event.Name
		return
	case e.stopping.Load() && errors.Is(event.Err, context.Canceled):
		return // a call that the server no longer waits for
	case errors.As(event.Err, &slow) && slow.Timeout():
		return // a machine that is busy: rights have another error, and the call comes again
	}
	e.happened <- fmt.Sprint("error ", event.Name, ": ", event.Err)
}

// has tells whether a run has ended like that at least once.
func (e *tourEvents) has(word string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.once[word]
}

// await waits until all of these have happened.
func (e *tourEvents) await(t *testing.T, ctx context.Context, all ...string) {
	t.Helper()
	for _, event := range all {
		for e.seen[event] == 0 {
			select {
			case next := <-e.happened:
				require.False(t, strings.HasPrefix(next, "error "), next)
				e.seen[next]++
			case <-ctx.Done():
				t.Fatalf("%q has not happened; these have: %v", event, slices.Sorted(maps.Keys(e.seen)))
			}
		}
	}
}
