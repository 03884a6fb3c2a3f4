package lua_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/doctor"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// A duty is a call of a role. It is made on a stage; what it answers does not matter here.
type duty func(ctx context.Context, h *Hand, running hand.Held)

// bar makes a key with Ordered limits wait for its job, as after a failure of that.
func bar(ctx context.Context, rdb redis.UniversalClient, k *script.Keys, key, id string) {
	const later = 9e12
	_ = rdb.ZAdd(ctx, k.Blockers, redis.Z{Score: later, Member: rdb.HGet(ctx, k.Keyed, id).Val() + id}).Err()
	_ = rdb.ZAdd(ctx, k.Parked, redis.Z{Score: later, Member: key}).Err()
}

// duties are what a role does, each call so that it uses the rights of the role that no other call
// uses.
func duties(role string) (list []duty) {
	raw := func(calls ...string) {
		for _, call := range calls {
			list = append(list, func(_ context.Context, h *Hand, running hand.Held) { _, _ = breakable[call](h, running) })
		}
	}
	asClient := func(f func(ctx context.Context, c *client, topic string)) {
		list = append(list, func(ctx context.Context, h *Hand, _ hand.Held) { f(ctx, h.client(), h.Keys.Topic) })
	}
	cancelAll := func(_ context.Context, h *Hand, _ hand.Held) { // the last lease goes
		for _, id := range []string{"running", "lapsed"} {
			_, _ = h.TryCancel(id)
		}
	}
	check := func() {
		asClient(func(ctx context.Context, c *client, topic string) { _, _ = c.Repair(ctx, topic) })
	}
	if role != "inspector" {
		list = append(list, func(ctx context.Context, h *Hand, _ hand.Held) {
			_ = h.RDB.Set(ctx, h.Keys.Leases, "a slip", 0).Err()
			_, _ = h.client().Get(ctx, h.Keys.Topic, "x")
		})
	}
	switch role {
	case "producer":
		raw("enqueue now", "enqueue later", "replace running", "replace dead", "cancel running", "cancel dead", "reschedule ready", "reschedule to now")
		asClient(func(ctx context.Context, c *client, topic string) {
			_, _ = c.Enqueue(ctx, topic, "", nil)
			_, _ = c.Get(ctx, topic, "dead")
			_, _ = c.insp.Schedule(ctx, topic, "s")
			_, _ = c.Enqueue(ctx, topic, "", nil, delayq.Key("another"))
			_, _ = c.Dequeue(ctx, topic, "keyed")
		})
		list = append(list, cancelAll, func(ctx context.Context, h *Hand, _ hand.Held) {
			for _, id := range []string{"first", "second"} {
				_, _ = h.client().Enqueue(ctx, h.Keys.Topic, id, nil, delayq.Key("ordered"))
			}
			bar(ctx, h.RDB, h.Keys, "ordered", "first")
			_, _ = h.TryCancel("first")
		})
	case "worker":
		raw("take", "promote", "ack", "give_back", "snooze", "retry", "bury", "again now", "again later", "extend")
		list = append(list, func(ctx context.Context, h *Hand, _ hand.Held) {
			for range 2 { // the second time as if the answer had been lost
				_, _ = h.TryTake("9", 1, time.Hour)
			}
		}, func(_ context.Context, h *Hand, _ hand.Held) {
			_, _ = h.TryPrune(0, time.Hour, 10)
		}, func(ctx context.Context, h *Hand, _ hand.Held) {
			_ = h.RDB.BLMove(ctx, h.Keys.Ready, h.Keys.Handoff, "LEFT", "RIGHT", time.Second).Err()
			_ = h.RDB.SAdd(ctx, script.TopicsKey(script.DefaultPrefix), h.Keys.Topic).Err()
			_ = h.RDB.SCard(ctx, script.TopicsKey(script.DefaultPrefix)).Err() // as a server with patterns does
			_ = h.RDB.SScan(ctx, script.TopicsKey(script.DefaultPrefix), 0, "", 1000).Err()
			_ = h.RDB.Info(ctx).Err()
			_ = h.RDB.HSetNX(ctx, h.Keys.Meta, "flow", flowOf(h.T, delayq.Limits{Running: 1000})).Err() // DefaultLimits
			_ = h.RDB.HScan(ctx, script.ServersKey(script.DefaultPrefix), 0, "", 100).Err()
			_ = h.RDB.HDel(ctx, script.ServersKey(script.DefaultPrefix), "nobody").Err()
			sub := h.RDB.Subscribe(ctx, script.ControlChannel(script.DefaultPrefix))
			_, _ = sub.Receive(ctx)
			_ = sub.Ping(ctx)
			_, _ = sub.Receive(ctx)
			_ = sub.Close()
			_, _ = h.Try(script.Heartbeat, []any{script.ServersKey(script.DefaultPrefix)}, "acl", "{}")
			_, _ = h.Try(script.Chronicle, h.Keys.Of(script.Chronicle, h.Keys.Receipt("history")), "1", "acked 1")
		}, func(_ context.Context, h *Hand, running hand.Held) { // the last lease goes
			_, _ = h.TryPromote(1000, 0)
			_, _ = h.Settle([]hand.Held{running}, settle.Row{Verb: settle.Ack})
		})
		list = append(list, fireSome)
		check()
	case "inspector":
		asClient(func(ctx context.Context, c *client, topic string) {
			i := c.insp
			for _, state := range []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateRunning, delayq.StateDead} {
				_ = jobs(state)(ctx, c, topic)
			}
			_, _ = i.Topics(ctx)
			_, _ = i.Stats(ctx, topic)
			_, _ = i.Servers(ctx)
			_, _ = i.Job(ctx, topic, "dead")
			_, _ = i.Find(ctx, "dead")
			_, _ = i.Forecast(ctx, topic, time.Now(), time.Minute, 60)
			_, _ = i.DueWithin(ctx, time.Now(), []time.Duration{time.Minute}, topic)
			for _, step := range []time.Duration{time.Minute, time.Hour} {
				_, _ = i.History(ctx, topic, time.Now().Add(-time.Hour), time.Now(), step)
			}
			_, _ = i.Schedules(ctx, topic)
			_, _ = i.Schedule(ctx, topic, "s")
			_, _ = i.Runs(ctx, topic, "s", 10)
			_, _ = i.Check(ctx, topic)
			_, _ = i.Audit(ctx, 10)
			_, _ = i.Explain(ctx, topic, "ready")
			_, _ = i.Explain(ctx, topic, "keyed")
			_, _ = i.Keys(ctx, topic, "", 10)
			_, _ = i.Jobs(ctx, delayq.Query{Topic: topic, State: delayq.StateReady, Latest: true})
			_, _ = i.Redis(ctx)
		})
		list = append(list, func(ctx context.Context, h *Hand, _ hand.Held) {
			_ = h.RDB.Type(ctx, script.TopicsKey(script.DefaultPrefix)).Err() // as after an error about a type
		})
	case "operator":
		raw("cancel running", "cancel dead", "reschedule ready", "reschedule to now", "revive", "revive later", "bury_waiting", "bury_waiting ready")
		asClient(func(ctx context.Context, c *client, topic string) {
			for _, state := range []delayq.State{delayq.StateScheduled, delayq.StateReady, delayq.StateRunning, delayq.StateDead} {
				_ = jobs(state)(ctx, c, topic)
			}
			_, _ = c.insp.Stats(ctx, topic)
			_, _ = c.insp.Schedule(ctx, topic, "s")
			_, _ = c.insp.Topics(ctx)
			_, _ = c.insp.Servers(ctx)
			_, _ = c.insp.Keys(ctx, topic, "", 10)
			_, _ = c.insp.Jobs(ctx, delayq.Query{Topic: topic, State: delayq.StateReady, Latest: true})
			_ = c.SetKeyLimits(ctx, topic, "key", delayq.KeyLimits{Weight: 2})
			_ = c.PauseKey(ctx, topic, "key")
			_ = c.ResumeKey(ctx, topic, "key")
			_ = c.Pause(ctx, topic, delayq.Pause{By: "me", Reason: "because", For: time.Hour})
			_ = c.Resume(delayq.WithActor(ctx, "me"), topic, "me")
			_ = c.RemoveTopic(ctx, "unused")
			_, _ = c.Enqueue(ctx, topic, "", nil)
		})
		list = append(list, cancelAll)
		check()
	}
	return list
}

// fireSome fires some slots of a schedule, the second while the job of the first one runs, the
// others while the last job is ready: those are cancelled.
func fireSome(ctx context.Context, h *Hand, _ hand.Held) {
	topic := h.Keys.Topic
	t := hand.NewTimer(h.RDB, h.Keys, slog.New(slog.DiscardHandler))
	_ = h.client().Schedule(ctx, topic, "s", delayq.Every(time.Millisecond), nil, delayq.OverlapCancelPrevious)
	for cancelled, try := 0, 0; cancelled < 3 && try < 500; try++ { // the slots come by themselves
		t.Firer.Idle = 0 // look again, though nothing is new
		t.Firer.Fire(ctx, 1, 0)
		if cancelled, _ = h.RDB.HGet(ctx, h.Keys.Stats, "cancelled").Int(); cancelled == 0 {
			_, _ = h.TryTake("", 10, time.Hour)
		}
	}
}

// Each command, each pattern of keys and the channel that the ACL file gives to a role is taken
// away in turn: each time something that the role has to do is refused, for want of that very
// right; and nothing is with all of them.
func TestACLNeedsEachRight(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("four roles, and all the rights of each")
	}
	for line := range strings.Lines(redistest.File(t, hand.ACLFile)) {
		words := strings.Fields(line)
		role := strings.TrimPrefix(words[1], "delayq-")
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			rs := redistest.Start(t, redistest.NoRoles...)
			admin := rs.Client(t)
			for i, word := range words {
				switch {
				case i < 2, word == "on", strings.HasPrefix(word, ">"), strings.HasPrefix(word, "reset"), word == "-@all":
				default:
					rest := append(append([]string{}, words[1:i]...), words[i+1:]...)
					require.True(t, refused(t, rs, admin, rest, word), "without %s nothing is refused", word)
				}
			}
			require.False(t, refused(t, rs, admin, words[1:], ""), "with all rights something is refused")
		})
	}
}

// refused makes a user of these rights, lets it do its duties, and tells whether Redis has refused
// something for want of the right word.
func refused(t *testing.T, rs *redistest.Server, admin *redis.Client, rights []string, word string) bool {
	t.Helper()
	ctx := t.Context()
	setuser := []any{"ACL", "SETUSER"}
	for _, right := range append(rights[:1:1], append([]string{"reset"}, rights[1:]...)...) {
		setuser = append(setuser, right)
	}
	require.NoError(t, admin.Do(ctx, setuser...).Err())
	require.NoError(t, admin.Do(ctx, "ACL", "LOG", "RESET").Err())
	require.NoError(t, admin.ScriptFlush(ctx).Err()) // for EVAL
	role := strings.TrimPrefix(rights[0], "delayq-")
	opt := rs.Options()
	opt.Username, opt.Password, opt.DisableIdentity = rights[0], "change-me-"+role, true
	rdb := redis.NewClient(opt)
	defer func() { _ = rdb.Close() }()
	for i, duty := range duties(role) {
		topic := fmt.Sprint(role, i)
		keys, err := admin.Keys(ctx, script.DefaultPrefix+":*").Result()
		require.NoError(t, err)
		if len(keys) > 0 {
			require.NoError(t, admin.Del(ctx, keys...).Err())
		}
		setting := NewHand(t, admin, script.DefaultPrefix, topic)
		running, _ := stage(setting)
		setting.layReady("key", "keyed")
		require.NoError(t, admin.ZAdd(ctx, setting.Keys.Held, redis.Z{Score: 1, Member: "key"}).Err())    // a hold that is over
		require.NoError(t, admin.ZAdd(ctx, setting.Keys.Turn, redis.Z{Member: ""}).Err())                 // ready takes turns
		require.NoError(t, admin.ZRem(ctx, setting.Keys.Bucket, "back").Err())                            // for a check to find
		require.NoError(t, admin.ZAdd(ctx, setting.Keys.Idle, redis.Z{Score: 1, Member: "nobody"}).Err()) // to be rung
		duty(ctx, NewHand(t, rdb, script.DefaultPrefix, topic), running)
		denied, err := admin.ACLLog(ctx, 100).Result()
		require.NoError(t, err)
		for _, entry := range denied {
			switch {
			case word == "" && redistest.Optional(entry.Object):
			case word == "":
				t.Errorf("refused: %+v", *entry)
				return true
			case strings.HasPrefix(word, "+") && entry.Reason == "command" && strings.EqualFold("+"+entry.Object, word),
				strings.HasPrefix(word, "~") && entry.Reason == "key",
				strings.HasPrefix(word, "&") && entry.Reason == "channel":
				return true
			}
		}
	}
	return false
}

// No role may touch what is not the queue's: another prefix, another channel, another command.
func TestACLGrantsNothingElse(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t, redistest.NoRoles...)
	admin := rs.Client(t)
	for line := range strings.Lines(redistest.File(t, hand.ACLFile)) {
		words := strings.Fields(line)
		setuser := []any{"ACL", "SETUSER"}
		for _, word := range words[1:] {
			setuser = append(setuser, word)
		}
		require.NoError(t, admin.Do(t.Context(), setuser...).Err())
		role := strings.TrimPrefix(words[1], "delayq-")
		opt := rs.Options()
		opt.Username, opt.Password = words[1], "change-me-"+role
		rdb := redis.NewClient(opt)
		defer func() { _ = rdb.Close() }()
		for _, command := range [][]any{
			{"HGET", "other:{t}:pool", "id"}, {"HSET", "mine", "a", "b"}, {"DEL", "delayqx:{t}:pool"}, {"GET", "delayq:other"},
			{"PUBLISH", "other:control", "x"}, {"SUBSCRIBE", "delayq:other"}, {"KEYS", "*"}, {"SCAN", "0"}, {"FLUSHALL"}, {"FLUSHDB"},
			{"CONFIG", "GET", "*"}, {"ACL", "LIST"}, {"MONITOR"}, {"SHUTDOWN"}, {"DEBUG", "SLEEP", "0"}, {"SCRIPT", "FLUSH"},
			{"REPLICAOF", "NO", "ONE"}, {"CLIENT", "KILL", "TYPE", "normal"}, {"HGETALL", "delayq:{t}:pool"}, {"RENAME", "delayq:{t}:pool", "delayq:{t}:x"},
			{"EVAL", "return redis.call('GET', KEYS[1])", "1", "other"}, {"EVAL", "return redis.call('FLUSHALL')", "0"},
		} {
			err := rdb.Do(t.Context(), command...).Err()
			require.Error(t, err, "%s: %v", role, command)
			require.Regexp(t, "NOPERM|can't run this command|can't access|ACL failure", err.Error(), "%s: %v", role, command)
		}
	}
}

// A deed is a call of the library on a stage, which succeeds if Redis refuses nothing.
type deed func(ctx context.Context, c *client, topic string) error

// deeds are all calls of a Client and of an Inspector that ask Redis anything. Where a call does
// different things for different arguments, each has an entry: all of them must be allowed, or
// none.
var deeds = map[string][]deed{
	"Enqueue": {
		func(ctx context.Context, c *client, topic string) error {
			_, err := c.Enqueue(ctx, topic, "new", nil)
			return err
		},
		func(ctx context.Context, c *client, topic string) error {
			_, err := c.Enqueue(ctx, topic, "running", nil, delayq.ProcessIn(time.Second/2), delayq.Replace())
			return err
		},
		func(ctx context.Context, c *client, topic string) error {
			_, err := c.Enqueue(ctx, topic, "dead", nil, delayq.Replace())
			return err
		},
	},
	"EnqueueBatch": {func(ctx context.Context, c *client, topic string) error {
		_, err := c.EnqueueBatch(ctx, []delayq.NewJob{{Topic: topic, ID: "new"}, {Topic: topic, ID: "later", Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}}})
		return err
	}},
	"CancelBatch": {func(ctx context.Context, c *client, topic string) error {
		_, err := c.CancelBatch(ctx, []delayq.JobRef{{Topic: topic, ID: "scheduled"}, {Topic: topic, ID: "ready"}, {Topic: topic, ID: "running"}, {Topic: topic, ID: "dead"}})
		return err
	}},
	"SetPriority": {func(ctx context.Context, c *client, topic string) error {
		_, err := c.Enqueue(ctx, topic, "of a key", nil, delayq.Key("key"), delayq.ProcessIn(time.Hour))
		return errors.Join(err, c.SetPriority(ctx, topic, "of a key", time.Hour))
	}},
	"RescheduleBatch": {func(ctx context.Context, c *client, topic string) error {
		_, err := c.RescheduleBatch(ctx, []delayq.NewDue{{Topic: topic, ID: "scheduled", Due: delayq.ProcessIn(0)}, {Topic: topic, ID: "ready", Due: delayq.ProcessIn(time.Second / 2)}})
		return err
	}},
	"GetBatch": {func(ctx context.Context, c *client, topic string) error {
		_, err := c.GetBatch(ctx, []delayq.JobRef{{Topic: topic, ID: "scheduled"}})
		return err
	}},
	"Dequeue": {dequeue("scheduled"), dequeue("ready"), dequeue("running"), dequeue("dead")},
	"Reschedule": {
		func(ctx context.Context, c *client, topic string) error {
			return c.Reschedule(ctx, topic, "scheduled", delayq.ProcessIn(0))
		},
		func(ctx context.Context, c *client, topic string) error {
			return c.Reschedule(ctx, topic, "ready", delayq.ProcessIn(time.Second/2))
		},
	},
	"Get": {get("scheduled"), get("running"), get("dead"), get("done")},
	"Inspector.Jobs": {func(ctx context.Context, c *client, topic string) error {
		_, err := c.insp.Jobs(ctx, delayq.Query{Topic: topic, State: delayq.StateReady})
		return err
	}},
	"Inspector.All": {jobs(delayq.StateScheduled), jobs(delayq.StateReady), jobs(delayq.StateRunning), jobs(delayq.StateDead), jobs(delayq.StateDone)},
	"Inspector.Count": {func(ctx context.Context, c *client, topic string) error {
		_, _, err := c.insp.Count(ctx, delayq.Query{Topic: topic, State: delayq.StateReady})
		return err
	}},
	"Inspector.Failures": {func(ctx context.Context, c *client, topic string) error {
		_, err := c.insp.Failures(ctx, topic, delayq.StateDead, 0)
		return err
	}},
	"Inspector.Key": {func(ctx context.Context, c *client, topic string) error {
		_, err := c.insp.Key(ctx, topic, "key")
		return err
	}},
	"Inspector.Keys": {func(ctx context.Context, c *client, topic string) error {
		_, err := c.insp.Keys(ctx, topic, "", 10)
		return err
	}},
	"Inspector.Stats": {func(ctx context.Context, c *client, topic string) error {
		_, err := c.insp.Stats(ctx, topic)
		return err
	}},
	"Inspector.Topics": {func(ctx context.Context, c *client, _ string) error {
		_, err := c.insp.Topics(ctx)
		return err
	}},
	"Inspector.Servers": {func(ctx context.Context, c *client, _ string) error {
		_, err := c.insp.Servers(ctx)
		return err
	}},
	"Inspector.Forecast": {func(ctx context.Context, c *client, topic string) error {
		_, err := c.insp.Forecast(ctx, topic, time.Now(), time.Minute, 60)
		return err
	}},
	"Inspector.History": {
		func(ctx context.Context, c *client, topic string) error {
			_, err := c.insp.History(ctx, topic, time.Now().Add(-time.Hour), time.Now(), time.Minute)
			return err
		},
		func(ctx context.Context, c *client, topic string) error {
			_, err := c.insp.History(ctx, topic, time.Now().Add(-time.Hour), time.Now(), time.Hour)
			return err
		},
	},
	"Inspector.DueWithin": {func(ctx context.Context, c *client, topic string) error {
		_, err := c.insp.DueWithin(ctx, time.Now(), []time.Duration{time.Minute}, topic)
		return err
	}},
	"Inspector.Find": {func(ctx context.Context, c *client, _ string) error {
		_, err := c.insp.Find(ctx, "dead")
		return err
	}},
	"Inspector.Audit": {func(ctx context.Context, c *client, _ string) error {
		_, err := c.insp.Audit(ctx, 10)
		return err
	}},
	"Inspector.Explain": {
		func(ctx context.Context, c *client, topic string) error {
			_, err := c.insp.Explain(ctx, topic, "ready")
			return err
		},
		func(ctx context.Context, c *client, topic string) error {
			_, err := c.insp.Explain(ctx, topic, "none")
			return err
		},
	},
	"Inspector.Redis": {func(ctx context.Context, c *client, _ string) error {
		_, err := c.insp.Redis(ctx)
		return err
	}},
	"Inspector.Job": {
		func(ctx context.Context, c *client, topic string) error {
			_, err := c.insp.Job(ctx, topic, "dead")
			return err
		},
	},
	"Inspector.Check": {
		func(ctx context.Context, c *client, topic string) error {
			_, err := c.insp.Check(ctx, topic)
			return err
		},
	},
	"Repair": {
		func(ctx context.Context, c *client, topic string) error {
			_, err := c.Repair(ctx, topic)
			return err
		},
	},
	"Pause": {
		func(ctx context.Context, c *client, topic string) error {
			return c.Pause(ctx, topic, delayq.Pause{})
		},
		func(ctx context.Context, c *client, topic string) error {
			return c.Pause(ctx, topic, delayq.Pause{For: time.Hour})
		},
	},
	"SetLimits": {
		func(ctx context.Context, c *client, topic string) error {
			return c.SetLimits(ctx, topic, delayq.Limits{Running: 1000})
		},
		func(ctx context.Context, c *client, topic string) error {
			return c.SetLimits(ctx, topic, delayq.Limits{Running: 1000, RunningPerKey: 1000})
		},
	},
	"SetKeyLimits": {
		func(ctx context.Context, c *client, topic string) error {
			return c.SetKeyLimits(ctx, topic, "key", delayq.KeyLimits{Weight: 2})
		},
		func(ctx context.Context, c *client, topic string) error {
			return c.SetKeyLimits(ctx, topic, "key", delayq.KeyLimits{Running: 1000})
		},
	},
	"HoldKey": {
		func(ctx context.Context, c *client, topic string) error {
			return c.HoldKey(ctx, topic, "key", time.Millisecond)
		},
	},
	"PauseKey":  {func(ctx context.Context, c *client, topic string) error { return c.PauseKey(ctx, topic, "key") }},
	"ResumeKey": {func(ctx context.Context, c *client, topic string) error { return c.ResumeKey(ctx, topic, "key") }},
	"Hold": {
		func(ctx context.Context, c *client, topic string) error {
			return c.Hold(ctx, topic, time.Millisecond, "why")
		},
	},
	"EndHold":   {func(ctx context.Context, c *client, topic string) error { return c.EndHold(ctx, topic) }},
	"Resume":    {func(ctx context.Context, c *client, topic string) error { return c.Resume(ctx, topic, "ops") }},
	"ResumeAll": {func(ctx context.Context, c *client, topic string) error { return c.ResumeAll(ctx, topic) }},
	"Delete":    {func(ctx context.Context, c *client, topic string) error { return c.Delete(ctx, topic, "done") }},
	"Revive":    {func(ctx context.Context, c *client, topic string) error { return c.Revive(ctx, topic, "dead") }},
	"Bury": {
		func(ctx context.Context, c *client, topic string) error {
			return c.Bury(ctx, topic, "scheduled", "why")
		},
		func(ctx context.Context, c *client, topic string) error {
			return c.Bury(ctx, topic, "ready", "why")
		},
	},
	"Apply": {
		func(ctx context.Context, c *client, topic string) error {
			_, err := c.Apply(ctx, delayq.Query{Topic: topic, State: delayq.StateScheduled}, delayq.Cancel())
			return err
		},
		func(ctx context.Context, c *client, topic string) error {
			_, err := c.Apply(ctx, delayq.Query{Topic: topic, State: delayq.StateScheduled}, delayq.RunNow())
			return err
		},
		func(ctx context.Context, c *client, topic string) error {
			_, err := c.Apply(ctx, delayq.Query{Topic: topic, State: delayq.StateReady}, delayq.BuryBecause("why"))
			return err
		},
		func(ctx context.Context, c *client, topic string) error {
			_, err := c.Apply(ctx, delayq.Query{Topic: topic, State: delayq.StateDead}, delayq.ReviveDead(), delayq.Spread(time.Second/2))
			return err
		},
		func(ctx context.Context, c *client, topic string) error {
			_, err := c.Apply(ctx, delayq.Query{Topic: topic, State: delayq.StateDone}, delayq.Purge())
			return err
		},
	},
	"RemoveTopic": {func(ctx context.Context, c *client, topic string) error {
		if err := c.RemoveTopic(ctx, topic); !errors.Is(err, delayq.ErrNotEmpty) {
			return err
		}
		return nil
	}},
	"Schedule": {
		func(ctx context.Context, c *client, topic string) error {
			return c.Schedule(ctx, topic, "new", delayq.Every(time.Hour), nil)
		},
		func(ctx context.Context, c *client, topic string) error {
			return c.Schedule(ctx, topic, "s", delayq.Every(time.Second/2), nil, delayq.DiscardEdits())
		},
	},
	"EditSchedule": {func(ctx context.Context, c *client, topic string) error {
		return c.EditSchedule(ctx, topic, "s", func(def *delayq.ScheduleDefinition) error {
			def.EditedBy = "me"
			def.Payload = []byte("new")
			return nil
		})
	}},
	"Unschedule": {func(ctx context.Context, c *client, topic string) error { return c.Unschedule(ctx, topic, "s") }},
	"PauseSchedule": {func(ctx context.Context, c *client, topic string) error {
		return c.PauseSchedule(ctx, topic, "s")
	}},
	"ResumeSchedule": {func(ctx context.Context, c *client, topic string) error {
		return c.ResumeSchedule(ctx, topic, "s")
	}},
	"Trigger": {func(ctx context.Context, c *client, topic string) error {
		_, err := c.Trigger(ctx, topic, "s")
		return err
	}},
	"Inspector.Schedules": {func(ctx context.Context, c *client, topic string) error {
		_, err := c.insp.Schedules(ctx, topic)
		return err
	}},
	"Inspector.Schedule": {func(ctx context.Context, c *client, topic string) error {
		_, err := c.insp.Schedule(ctx, topic, "s")
		return err
	}},
	"Inspector.Runs": {func(ctx context.Context, c *client, topic string) error {
		_, err := c.insp.Runs(ctx, topic, "s", 10)
		return err
	}},
}

func dequeue(id string) deed {
	return func(ctx context.Context, c *client, topic string) error {
		_, err := c.Dequeue(ctx, topic, id)
		return err
	}
}

func get(id string) deed {
	return func(ctx context.Context, c *client, topic string) error {
		_, err := c.Get(ctx, topic, id)
		return err
	}
}

// jobs reads pages of jobs. The second one begins at the place where the first one ends.
func jobs(state delayq.State) deed {
	return func(ctx context.Context, c *client, topic string) error {
		for _, err := range c.insp.All(ctx, delayq.Query{Topic: topic, State: state, Limit: 1}) {
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// serverCalls are what a Server has beside Run. They ask Redis nothing but what Run does. For the
// probes of HealthHandler see TestHealthz.
var serverCalls = []string{"Calendar", "Handle", "HandleBatch", "HandlerFunc", "Health", "ID", "Ready", "Remove", "Use", "UseBatch"}

// Each call of the library, made as each user of the ACL file on a real Redis, is carried out or
// refused as the table in docs/security.md says; what is refused has changed nothing.
func TestACLIsTheTableOfCalls(t *testing.T) {
	t.Parallel()
	table := redistest.CallRoles(redistest.File(t, "docs/security.md"))
	want := slices.Collect(maps.Keys(deeds))
	for i := range reflect.TypeFor[*delayq.Client]().NumMethod() {
		require.Contains(t, want, reflect.TypeFor[*delayq.Client]().Method(i).Name, "a call that nobody tries")
	}
	for i := range reflect.TypeFor[*delayq.Inspector]().NumMethod() {
		if name := reflect.TypeFor[*delayq.Inspector]().Method(i).Name; name != "Prefix" { // which asks Redis nothing
			require.Contains(t, want, "Inspector."+name, "a call that nobody tries")
		}
	}
	for i := range reflect.TypeFor[*delayq.Server]().NumMethod() {
		if name := reflect.TypeFor[*delayq.Server]().Method(i).Name; !slices.Contains(serverCalls, name) {
			require.Equal(t, "Run", name, "a call that nobody tries")
		}
	}
	require.ElementsMatch(t, append(want, "Run"), slices.Collect(maps.Keys(table)), "the calls of the table")

	file := redistest.Path(hand.ACLFile)
	rs := redistest.Start(t, "--aclfile", file)
	admin := rs.Client(t)
	for _, role := range redistest.RoleNames {
		rdb := queuetest.ACLClient(t, rs, role)
		for name, list := range deeds {
			for i, call := range list {
				what := fmt.Sprintf("%s %d as the %s", name, i, role)
				h := stageOf(t, admin, script.DefaultPrefix, fmt.Sprint(role, name, i))
				before := redistest.Dump(t, admin, script.DefaultPrefix)
				err := call(t.Context(), newClient(rdb, script.DefaultPrefix), h.Keys.Topic)
				if slices.Contains(table[name], role) {
					require.NoError(t, err, what)
					nothingDenied(t, admin)
					continue
				}
				require.Error(t, err, what)
				require.Regexp(t, refusal, err.Error(), what)
				require.Equal(t, before, redistest.Dump(t, admin, script.DefaultPrefix), what)
			}
		}
		require.Equal(t, slices.Contains(table["Run"], role), aclServes(t, admin, rdb, role), "Run as the %s", role)
	}
}

// refusal is how Redis refuses a call, and a command within a script.
const refusal = "NOPERM|can't run this command|can't access|ACL failure"

// ofThePrefix are the calls that read keys of the whole prefix.
var ofThePrefix = []string{"Inspector.Topics", "Inspector.Servers", "Inspector.Stats", "Inspector.Find", "Inspector.Audit", "Inspector.Explain"}

// A user is kept to one topic, or to another prefix, by other patterns, as docs/security.md says:
// there it can do all that it could, and elsewhere nothing.
func TestACLCanBeNarrowed(t *testing.T) {
	t.Parallel()
	table := redistest.CallRoles(redistest.File(t, "docs/security.md"))
	rs := redistest.Start(t, redistest.NoRoles...)
	admin := rs.Client(t)
	for what, c := range map[string]struct{ wide, narrow, prefix, topic string }{
		"a topic":        {"delayq:{*}:", "delayq:{mail}:", "delayq", "mail"},
		"another prefix": {"delayq:", "shop:", "shop", "post"},
	} {
		for line := range strings.Lines(redistest.File(t, hand.ACLFile)) {
			setuser := []any{"ACL", "SETUSER"}
			for _, word := range strings.Fields(line)[1:] {
				setuser = append(setuser, strings.Replace(word, c.wide, c.narrow, 1))
			}
			require.NoError(t, admin.Do(t.Context(), setuser...).Err())
		}
		for _, role := range redistest.RoleNames {
			rdb := queuetest.ACLClient(t, rs, role)
			for name, list := range deeds {
				if !slices.Contains(table[name], role) || what == "a topic" && slices.Contains(ofThePrefix, name) || name == "Inspector.Redis" {
					continue
				}
				for i, call := range list {
					what := fmt.Sprintf("%s: %s %d as the %s", what, name, i, role)
					stageOf(t, admin, c.prefix, c.topic)
					require.NoError(t, call(t.Context(), newClient(rdb, c.prefix), c.topic), what)
					nothingDenied(t, admin)

					stageOf(t, admin, script.DefaultPrefix, "post")
					before := redistest.Dump(t, admin, script.DefaultPrefix)
					err := call(t.Context(), newClient(rdb, script.DefaultPrefix), "post")
					require.Error(t, err, what)
					require.Regexp(t, refusal, err.Error(), what)
					require.Equal(t, before, redistest.Dump(t, admin, script.DefaultPrefix), what)
				}
			}
		}
	}
}

// stageOf is queuetest.ACLStage for the Hand of these tests.
func stageOf(t *testing.T, admin *redis.Client, prefix, topic string) *Hand {
	t.Helper()
	return &Hand{queuetest.ACLStage(t, admin, prefix, topic)}
}

// aclServes reports whether a server with the rights of a role runs a job.
func aclServes(t *testing.T, admin, rdb *redis.Client, role string) bool {
	t.Helper()
	h := stageOf(t, admin, script.DefaultPrefix, "run"+role)
	require.NoError(t, h.client().ResumeAll(t.Context(), h.Keys.Topic))
	ended := make(chan bool, 1000)
	s := delayq.NewServer(rdb, delayq.Logger(slog.New(slog.DiscardHandler)), delayq.Hooks(
		doneHook(func() { ended <- true }),
		takeHook(func(e delayq.ScriptEvent) {
			if e.Name == "take" && e.Err != nil && strings.Contains(e.Err.Error(), "NOPERM") {
				ended <- false
			}
		})))
	s.HandlerFunc(h.Keys.Topic, func(context.Context, *delayq.Job) error { return nil })
	run, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- s.Run(run) }()
	defer func() {
		stop()
		<-over
	}()
	return <-ended
}

type takeHook func(delayq.ScriptEvent)

func (f takeHook) Script(e delayq.ScriptEvent) { f(e) }

// With DELAYQ_ROLES, each role makes each call that the table gives it.
func TestEachRoleMakesItsCalls(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t)
	rdb := rs.Client(t)
	for name, roles := range redistest.MethodRoles() {
		for i := range max(len(roles), len(deeds[name])) { // the roles take turns
			what := fmt.Sprint(name, " ", i)
			h := stageOf(t, rdb, script.DefaultPrefix, fmt.Sprint(name, i))
			require.NoError(t, deeds[name][i%len(deeds[name])](t.Context(), h.client(), h.Keys.Topic), what)
			nothingDenied(t, rdb)
		}
	}
	for range 4 { // a server checks too, in turn with the operator
		h := stageOf(t, rdb, script.DefaultPrefix, "checked")
		require.NoError(t, doctor.New(script.Caller{RDB: rdb}, rdb, h.Keys, true).Check(t.Context()))
		nothingDenied(t, rdb)
	}
}

// A test asks as the user default, which cannot run scripts, the library as its users, and
// what is denied to these is told. Here with or without DELAYQ_ROLES.
func TestCallsAreMadeByTheUsers(t *testing.T) {
	t.Setenv("DELAYQ_ROLES", hand.ACLFile)
	rs := redistest.Start(t)
	rdb, ctx := rs.Client(t), t.Context()
	client := newClient(rdb, "other")
	acked := make(chan struct{}, 1)
	server := queuetest.NewServer(rdb, "other", delayq.Hooks(doneHook(func() { acked <- struct{}{} })))
	server.HandlerFunc("topic", func(context.Context, *delayq.Job) error { return rdb.Ping(ctx).Err() })
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Run(run) }()
	for _, id := range []string{"x", "y"} { // by the producer and by the operator
		_, err := client.Enqueue(ctx, "topic", id, nil)
		require.NoError(t, err)
		<-acked
	}
	users := map[string]bool{}
	for _, m := range regexp.MustCompile(`user=(\S+)`).FindAllStringSubmatch(rdb.ClientList(ctx).Val(), -1) {
		users[m[1]] = true
	}
	require.Equal(t, map[string]bool{"default": true, "delayq-producer/other": true, "delayq-worker/other": true, "delayq-operator/other": true}, users)
	stop()
	require.NoError(t, <-ended)
	require.ErrorContains(t, rdb.Eval(ctx, "return 1", nil).Err(), "NOPERM")
	require.ErrorContains(t, redistest.Denied(), "eval was denied to default")
	require.NoError(t, rdb.Do(ctx, "ACL", "LOG", "RESET").Err())

	require.NoError(t, rs.Restart())
	_ = rdb.Ping(ctx) // drops the connection that the restart has cut
	require.NoError(t, rdb.Do(ctx, "ACL", "SETUSER", "delayq-producer/other", "-evalsha").Err())
	_, once := client.Enqueue(ctx, "topic", "x", nil)
	_, twice := client.Enqueue(ctx, "topic", "y", nil)
	require.ErrorContains(t, errors.Join(once, twice), "NOPERM")
	require.ErrorContains(t, redistest.Denied(), "evalsha was denied to delayq-producer/other")
	require.NoError(t, rdb.Do(ctx, "ACL", "LOG", "RESET").Err())
}

// Each method of Client and Inspector, and each script, is something that a role may call.
func TestEveryCallHasARole(t *testing.T) {
	t.Parallel()
	methods := reflect.TypeFor[*delayq.Client]()
	for i := range methods.NumMethod() {
		require.NotEmpty(t, redistest.MethodRoles()[methods.Method(i).Name], methods.Method(i).Name)
	}
	readers := reflect.TypeFor[*delayq.Inspector]()
	for i := range readers.NumMethod() {
		if name := readers.Method(i).Name; name != "Prefix" { // which asks Redis nothing
			require.NotEmpty(t, redistest.MethodRoles()["Inspector."+name], name)
		}
	}
	require.Len(t, redistest.MethodRoles(), methods.NumMethod()+readers.NumMethod()-1)
	for _, s := range script.All {
		require.NotEmpty(t, hand.ScriptRoles[s], s.Name)
	}
	require.Len(t, hand.ScriptRoles, len(script.All))
}
