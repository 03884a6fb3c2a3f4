package lua_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// A Lua script is not undone when one of its commands fails. What follows calls every script with
// every one of its keys in turn being of a wrong type, as after a slip of an operator, mends the
// key, and looks whether all jobs still come to their end.

// stage has jobs in every state: scheduled, ready, handoff, running, lapsed, back (off), dead. It
// gives the leases of the running ones.
func stage(h *Hand) (running, lapsed hand.Held) {
	h.T.Helper()
	ctx := context.Background()
	h.Put("+0", "dead", "back", "running", "lapsed")
	held := h.Take(3, time.Hour)
	require.Equal(h.T, "o", h.Bury(held[0]))
	require.Equal(h.T, "o", h.Retry(time.Hour, held[1]))
	lapsed = h.Take(1, 0)[0]
	h.Put("+3600000", "scheduled", "due")
	require.NoError(h.T, h.RDB.ZIncrBy(ctx, h.Keys.Bucket, -7_200_000, "due").Err())
	h.Put("+0", "handoff", "ready", "ready2")
	require.NoError(h.T, h.RDB.LMove(ctx, h.Keys.Ready, h.Keys.Handoff, "LEFT", "RIGHT").Err())
	return held[2], lapsed
}

var staged = []string{"back", "dead", "due", "handoff", "lapsed", "ready", "ready2", "running", "scheduled"}

// breakable are the calls of scripts that write, each made on a stage.
var breakable = map[string]func(h *Hand, running hand.Held) (script.Reply, error){
	"promote": func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryPromote(1000, 1) },
	"take":    func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryTake("", 10, time.Hour) },
	"ack": func(h *Hand, r hand.Held) (script.Reply, error) {
		return h.Settle([]hand.Held{r}, settle.Row{Verb: settle.Ack})
	},
	"give_back": func(h *Hand, r hand.Held) (script.Reply, error) {
		return h.Settle([]hand.Held{r}, settle.Row{Verb: settle.Return})
	},
	"hold back": func(h *Hand, r hand.Held) (script.Reply, error) {
		return h.Settle([]hand.Held{r}, settle.Row{Verb: settle.Hold, Delay: time.Hour, Err: errTest})
	},
	"snooze": func(h *Hand, r hand.Held) (script.Reply, error) {
		return h.Settle([]hand.Held{r}, settle.Row{Verb: settle.Snooze})
	},
	"retry": func(h *Hand, r hand.Held) (script.Reply, error) {
		return h.Settle([]hand.Held{r}, settle.Row{Verb: settle.Retry, Failure: hand.Failed})
	},
	"bury": func(h *Hand, r hand.Held) (script.Reply, error) {
		return h.Settle([]hand.Held{r}, settle.Row{Verb: settle.Bury, Failure: hand.Failed})
	},
	"again now": func(h *Hand, r hand.Held) (script.Reply, error) {
		return h.Settle([]hand.Held{r}, settle.Row{Verb: settle.Again})
	},
	"again later": func(h *Hand, r hand.Held) (script.Reply, error) {
		return h.Settle([]hand.Held{r}, settle.Row{Verb: settle.Again, Delay: time.Hour})
	},
	"extend":      func(h *Hand, r hand.Held) (script.Reply, error) { return h.TryExtend(r.LeaseEnd()+1000, r) },
	"enqueue now": func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryEnqueue(false, [2]string{"new", "+0"}) },
	"enqueue later": func(h *Hand, _ hand.Held) (script.Reply, error) {
		return h.TryEnqueue(false, [2]string{"new", "+3600000"})
	},
	"enqueue_now":   func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryEnqueueLone("new", "+0") },
	"enqueue_later": func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryEnqueueLone("new", "+3600000") },
	"replace running": func(h *Hand, _ hand.Held) (script.Reply, error) {
		return h.TryEnqueue(true, [2]string{"running", "+0"})
	},
	"replace scheduled": func(h *Hand, _ hand.Held) (script.Reply, error) {
		return h.TryEnqueue(true, [2]string{"scheduled", "+0"})
	},
	"replace dead": func(h *Hand, _ hand.Held) (script.Reply, error) {
		return h.TryEnqueue(true, [2]string{"dead", "+3600000"})
	},
	"replace backed off": func(h *Hand, _ hand.Held) (script.Reply, error) {
		return h.TryEnqueue(true, [2]string{"back", "+3600000"})
	},
	"enqueue unique": func(h *Hand, _ hand.Held) (script.Reply, error) {
		return h.TryEnqueue(false, [2]string{"new", "+0!1000/10"})
	},
	"replace unique": func(h *Hand, _ hand.Held) (script.Reply, error) {
		return h.TryEnqueue(true, [2]string{"scheduled", "+0!1000/10"})
	},
	"replace debounce scheduled": func(h *Hand, _ hand.Held) (script.Reply, error) {
		return h.TryEnqueue(false, [2]string{"scheduled", "b+3600000/36000000"})
	},
	"replace debounce running": func(h *Hand, _ hand.Held) (script.Reply, error) {
		return h.TryEnqueue(false, [2]string{"running", "b+3600000/36000000"})
	},
	"replace latest": func(h *Hand, _ hand.Held) (script.Reply, error) {
		return h.TryEnqueue(false, [2]string{"back", "l+3600000"})
	},
	"retry successor": func(h *Hand, r hand.Held) (script.Reply, error) {
		h.follow("running")
		return h.Settle([]hand.Held{r}, settle.Row{Verb: settle.Retry, Failure: hand.Failed})
	},
	"again successor": func(h *Hand, r hand.Held) (script.Reply, error) {
		h.follow("running")
		return h.Settle([]hand.Held{r}, settle.Row{Verb: settle.Ack, Heir: true})
	},
	"cancel tomb":        func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryCancelKnown("ready", "!1000/10") },
	"cancel running":     func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryCancel("running") },
	"cancel scheduled":   func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryCancel("scheduled") },
	"cancel dead":        func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryCancel("dead") },
	"reschedule ready":   func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryReschedule("ready", "+3600000") },
	"reschedule to now":  func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryReschedule("scheduled", "+0") },
	"revive":             func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryRevive("dead") },
	"revive later":       func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryReviveAt("dead", "+3600000") },
	"bury_waiting ready": func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryBury("ready") },
	"bury_waiting":       func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryBury("back") },
}

// scriptOf is the script of a call in breakable.
func scriptOf(call string) string {
	word, _, _ := strings.Cut(call, " ")
	return word
}

// follow gives a running job a successor, if that can be.
func (h *Hand) follow(id string) {
	_, _ = h.TryEnqueue(false, [2]string{id, "b+3600000/36000000"})
}

// mayForget lists the jobs that a call may end.
var mayForget = map[string]string{
	"ack": "running", "cancel tomb": "ready", "cancel running": "running", "cancel scheduled": "scheduled", "cancel dead": "dead",
}

// (J11)
func TestWrongTypeLosesNoJob(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, call := range []string{
			"promote", "give_back", "snooze", "retry", "bury", "again now", "again later", "again successor", "retry successor", "extend", "enqueue now", "enqueue later", "enqueue_now", "enqueue_later", "enqueue unique", "cancel tomb", "cancel running", "cancel scheduled",
			"reschedule ready", "reschedule to now", "revive", "revive later", "bury_waiting ready", "bury_waiting",
		} {
			t.Run(call, func(t *testing.T) {
				for _, key := range keysIn(t, scriptOf(call)) {
					t.Run(key, func(t *testing.T) {
						h := NewHand(t, rdb, redistest.Prefix(t), "topic")
						breakOne(t, h, call, key)
					})
				}
			})
		}
	})
}

// keysIn reads the header of a script: its keys but stats and receipt, which have a test of their
// own.
func keysIn(t *testing.T, name string) (list []string) {
	t.Helper()
	for _, s := range script.All {
		if s.Name == name {
			for _, found := range regexp.MustCompile(`(?m)^-- KEYS\[\d+\] +(\w+)`).FindAllStringSubmatch(fmt.Sprint(s.Text), -1) {
				if key := found[1]; key != "stats" && key != "receipt" && !slices.Contains(list, key) {
					list = append(list, key)
				}
			}
		}
	}
	require.NotEmpty(t, list)
	return list
}

func breakOne(t *testing.T, h *Hand, call, key string) {
	running, _ := stage(h)
	mend := h.Deface(key)
	_, err := breakable[call](h, running)
	if err != nil {
		require.ErrorContains(t, err, "WRONGTYPE")
		require.ErrorContains(t, err, fmt.Sprintf(`%s topic "topic": key %q is a string and not a %s: `, scriptOf(call), h.Key(key), script.TypeOf(h.Key(key))))
		require.True(t, script.Answered(err))
	}
	mend()

	want := slices.Clone(staged)
	if gone := mayForget[call]; gone != "" {
		want = slices.DeleteFunc(want, func(id string) bool { return id == gone })
	}
	got := h.finish()
	for _, id := range want {
		require.Contains(t, got, id, "this job never came to its end; the call said: %v", err)
	}
	if gone := mayForget[call]; gone != "" && err == nil {
		require.NotContains(t, got, gone)
	}
	// Nothing else is left, unless the call has worked without a key that it could not clear.
	for name, content := range redistest.Dump(t, h.RDB, h.Prefix()) {
		if name != h.Keys.Tombs && (err != nil || name != h.Key(key)) { // a tomb stays without a job
			require.Equal(t, h.Keys.Stats, name, "left over: %v", content)
		}
	}
}

// finish lets all time pass, runs every job and revives the dead ones, until nothing is left. It
// gives the IDs it has met.
func (h *Hand) finish() (ids []string) {
	h.T.Helper()
	for range 3 {
		if h.RDB.HLen(context.Background(), h.Keys.Pool).Val() == 0 {
			break
		}
		h.Hasten(24 * time.Hour)
		h.Promote()
		for {
			r, err := h.TryTake("", 100, time.Hour)
			require.NoError(h.T, err)
			if r.Status() == "empty" {
				break
			}
			held := hand.HeldOf(r)
			ids = append(ids, idsOf(held)...)
			require.NotContains(h.T, h.Ack(held...), "l")
		}
		dead, err := h.RDB.ZRange(context.Background(), h.Keys.Dead, 0, -1).Result()
		require.NoError(h.T, err)
		for _, id := range dead {
			_, err := h.TryRevive(id)
			require.NoError(h.T, err)
		}
	}
	return ids
}

// Counters never decide the fate of a job. (A6)
func TestCountersDecideNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		for call := range breakable {
			t.Run(call, func(t *testing.T) {
				good, bad := NewHand(t, rdb, redistest.Prefix(t), "topic"), NewHand(t, rdb, redistest.Prefix(t), "topic")
				running, _ := stage(good)
				want, err := breakable[call](good, running)
				require.NoError(t, err)

				running, _ = stage(bad)
				bad.Deface("stats")
				got, err := breakable[call](bad, running)
				require.NoError(t, err)
				require.Equal(t, places(want), places(got))
				require.Equal(t, good.sketch(), bad.sketch())
			})
		}
	})
}

// places is a reply without what differs between two calls: times and records.
func places(r script.Reply) []string {
	list := []string{r.Status(), strconv.Itoa(len(r))}
	if len(r.List(3)) == 0 { // else it is the end of a lease
		list = append(list, r.Text(2))
	}
	return append(list, idsOf(hand.HeldOf(r))...)
}

// sketch tells in which keys each ID stands.
func (h *Hand) sketch() map[string][]string {
	h.T.Helper()
	all := make(map[string][]string)
	note := func(id, key string) {
		if key != "stats" && key != "kept" && len(id) <= script.MaxIDLen { // no counters, no anchor
			all[id] = append(all[id], key)
		}
	}
	for key, content := range redistest.Dump(h.T, h.RDB, h.Prefix()) {
		switch key = strings.TrimPrefix(key, h.Keys.Root); c := content.(type) {
		case map[string]string:
			for id := range c {
				note(id, key)
			}
		case []redis.Z:
			for _, z := range c {
				note(fmt.Sprint(z.Member), key)
			}
		case []string:
			for _, id := range c {
				note(id, key)
			}
		}
	}
	for _, keys := range all {
		slices.Sort(keys)
	}
	return all
}

// What errors say of types is what the headers of the scripts say.
func TestTypesOfKeys(t *testing.T) {
	k := script.NewKeys("a:b", "t:opic")
	full := func(name string) string {
		switch name {
		case "receipt":
			return k.Receipt("series")
		case "servers":
			return script.ServersKey("a:b")
		case "audit":
			return script.AuditKey("a:b")
		}
		return k.Key(name)
	}
	seen := 0
	for _, s := range script.All {
		for _, found := range regexp.MustCompile(`(?m)^-- KEYS\[\d+\] +(\w+) +(\w+)`).FindAllStringSubmatch(fmt.Sprint(s.Text), -1) {
			name, should := found[1], found[2]
			if s.Name == "take" && name == "receipt" {
				require.Equal(t, should, script.TypeOf(k.Taken("server")))
				continue
			}
			require.Equal(t, should, script.TypeOf(full(name)), "%s: %s", s.Name, name)
			seen++
		}
	}
	require.Greater(t, seen, 100)
	require.Equal(t, "set", script.TypeOf(script.TopicsKey("a:b")))
}

// mute is a client without the right to ask for a type.
type mute struct{ redis.UniversalClient }

func (m mute) Process(ctx context.Context, cmd redis.Cmder) error {
	if cmd.Name() == "type" {
		cmd.SetErr(proto("NOPERM this user has no permissions to run the 'type' command"))
		return cmd.Err()
	}
	return m.UniversalClient.Process(ctx, cmd)
}

type proto string

func (p proto) Error() string { return string(p) }
func (p proto) RedisError()   {}

// Without the right to ask there is the error of Redis.
func TestWrongTypeWithoutTheRightToAsk(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Deface("pool")
		_, err := h.client().insp.Stats(t.Context(), "topic")
		require.ErrorContains(t, err, fmt.Sprintf(`inspect topic "topic": key %q is a string and not a hash: `, h.Keys.Pool))
		c := script.Caller{RDB: mute{redistest.As(t, h.RDB, "operator", h.Prefix(), false)}}
		_, err = script.LookUp(t.Context(), c, h.Keys, script.CallBytes, -1, []string{"a"})
		require.ErrorContains(t, err, "WRONGTYPE")
		require.NotContains(t, err.Error(), "pool")
		require.True(t, script.Answered(err))
	})
}

// Calls that are no scripts name the key too. (J11)
func TestWrongTypeOfPlainCommandsIsNamed(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		c := h.client()
		for key, call := range map[string]func() error{
			h.Keys.Ready: func() error {
				_, err := c.insp.Jobs(t.Context(), delayq.Query{Topic: "topic", State: delayq.StateReady})
				return err
			},
			h.Keys.Done: func() error {
				_, err := c.insp.Jobs(t.Context(), delayq.Query{Topic: "topic", State: delayq.StateDone})
				return err
			},
			h.Keys.Fired:                  func() error { _, err := c.insp.Schedules(t.Context(), "topic"); return err },
			h.Keys.Runs:                   func() error { _, err := c.insp.Runs(t.Context(), "topic", "s", 1); return err },
			script.TopicsKey(h.Prefix()):  func() error { _, err := c.insp.Topics(t.Context()); return err },
			script.ServersKey(h.Prefix()): func() error { _, err := c.insp.Servers(t.Context()); return err },
		} {
			require.NoError(t, h.RDB.Set(t.Context(), key, "a slip", 0).Err())
			require.ErrorContains(t, call(), fmt.Sprintf("key %q is a string and not a %s: ", key, script.TypeOf(key)))
			require.NoError(t, h.RDB.Del(t.Context(), key).Err())
		}
	})
}
