package delayq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// A duty is a call of a role. It is made on a stage; what it answers does not matter here.
type duty func(ctx context.Context, h *Hand, running Held)

// duties are what a role does, each call so that it uses the rights of the role that no other call
// uses.
func duties(role string) (list []duty) {
	raw := func(calls ...string) {
		for _, call := range calls {
			list = append(list, func(_ context.Context, h *Hand, running Held) { _, _ = breakable[call](h, running) })
		}
	}
	asClient := func(f func(ctx context.Context, c *Client, topic string)) {
		list = append(list, func(ctx context.Context, h *Hand, _ Held) { f(ctx, h.client(), h.keys.Topic) })
	}
	cancelAll := func(_ context.Context, h *Hand, _ Held) { // the last lease goes
		for _, id := range []string{"running", "lapsed"} {
			_, _ = h.tryCancel(id)
		}
	}
	check := func() {
		asClient(func(ctx context.Context, c *Client, topic string) { _, _ = c.Repair(ctx, topic) })
	}
	if role != "inspector" {
		list = append(list, func(ctx context.Context, h *Hand, _ Held) {
			_ = h.rdb.Set(ctx, h.keys.Leases, "a slip", 0).Err()
			_, _ = h.client().Get(ctx, h.keys.Topic, "x")
		})
	}
	switch role {
	case "producer":
		raw("enqueue now", "enqueue later", "replace running", "replace dead", "cancel running", "cancel dead", "reschedule ready", "reschedule to now")
		asClient(func(ctx context.Context, c *Client, topic string) {
			_, _ = c.Enqueue(ctx, topic, "", nil)
			_, _ = c.Get(ctx, topic, "dead")
			_, _ = inspectorOf(c).Schedule(ctx, topic, "s")
			_, _ = c.Enqueue(ctx, topic, "", nil, Key("another"))
			_, _ = c.Dequeue(ctx, topic, "keyed")
		})
		list = append(list, cancelAll)
	case "worker":
		raw("take", "promote", "ack", "give_back", "snooze", "retry", "bury", "again now", "again later", "extend")
		list = append(list, func(ctx context.Context, h *Hand, _ Held) {
			for range 2 { // the second time as if the answer had been lost
				_, _ = h.tryTake("9", 1, time.Hour)
			}
		}, func(_ context.Context, h *Hand, _ Held) {
			_, _ = h.tryPrune(0, time.Hour, 10)
		}, func(ctx context.Context, h *Hand, _ Held) {
			_ = h.rdb.BLMove(ctx, h.keys.Ready, h.keys.Handoff, "LEFT", "RIGHT", time.Second).Err()
			_ = h.rdb.SAdd(ctx, script.TopicsKey(script.DefaultPrefix), h.keys.Topic).Err()
			_ = h.rdb.SCard(ctx, script.TopicsKey(script.DefaultPrefix)).Err() // as a server with patterns does
			_ = h.rdb.SScan(ctx, script.TopicsKey(script.DefaultPrefix), 0, "", 1000).Err()
			_ = h.rdb.Info(ctx).Err()
			_ = h.rdb.HSetNX(ctx, h.keys.Meta, "flow", Limits{Running: 1000}.encode()).Err() // DefaultLimits
			_ = h.rdb.HScan(ctx, script.ServersKey(script.DefaultPrefix), 0, "", 100).Err()
			_ = h.rdb.HDel(ctx, script.ServersKey(script.DefaultPrefix), "nobody").Err()
			sub := h.rdb.Subscribe(ctx, script.ControlChannel(script.DefaultPrefix))
			_, _ = sub.Receive(ctx)
			_ = sub.Ping(ctx)
			_, _ = sub.Receive(ctx)
			_ = sub.Close()
			_, _ = h.try(script.Heartbeat, []any{script.ServersKey(script.DefaultPrefix)}, "acl", "{}")
			_, _ = h.try(script.Chronicle, h.keys.Of(script.Chronicle, h.keys.Receipt("history")), "1", "acked 1")
		}, func(_ context.Context, h *Hand, running Held) { // the last lease goes
			_, _ = h.tryPromote(1000, 0)
			_, _ = h.settle([]Held{running}, settle.Row{Verb: settle.Ack})
		})
		list = append(list, fireSome)
		check()
	case "inspector":
		asClient(func(ctx context.Context, c *Client, topic string) {
			i := inspectorOf(c)
			for _, state := range []State{StateScheduled, StateReady, StateRunning, StateDead} {
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
			_, _ = i.Jobs(ctx, Query{Topic: topic, State: StateReady, Latest: true})
			_, _ = i.Redis(ctx)
			_ = i.rdb.Type(ctx, script.TopicsKey(script.DefaultPrefix)).Err() // as after an error about a type
		})
	case "operator":
		raw("cancel running", "cancel dead", "reschedule ready", "reschedule to now", "revive", "revive later", "bury_waiting", "bury_waiting ready")
		asClient(func(ctx context.Context, c *Client, topic string) {
			for _, state := range []State{StateScheduled, StateReady, StateRunning, StateDead} {
				_ = jobs(state)(ctx, c, topic)
			}
			_, _ = inspectorOf(c).Stats(ctx, topic)
			_, _ = inspectorOf(c).Schedule(ctx, topic, "s")
			_, _ = inspectorOf(c).Topics(ctx)
			_, _ = inspectorOf(c).Servers(ctx)
			_, _ = inspectorOf(c).Keys(ctx, topic, "", 10)
			_, _ = inspectorOf(c).Jobs(ctx, Query{Topic: topic, State: StateReady, Latest: true})
			_ = c.SetKeyLimits(ctx, topic, "key", KeyLimits{Weight: 2})
			_ = c.PauseKey(ctx, topic, "key")
			_ = c.ResumeKey(ctx, topic, "key")
			_ = c.Pause(ctx, topic, Pause{By: "me", Reason: "because", For: time.Hour})
			_ = c.Resume(WithActor(ctx, "me"), topic, "me")
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
func fireSome(ctx context.Context, h *Hand, _ Held) {
	topic := h.keys.Topic
	t := newHandTimer(h.rdb, h.keys, slog.New(slog.DiscardHandler))
	_ = h.client().Schedule(ctx, topic, "s", Every(time.Millisecond), nil, OverlapCancelPrevious)
	for cancelled, try := 0, 0; cancelled < 3 && try < 500; try++ { // the slots come by themselves
		t.Firer.Idle = 0 // look again, though nothing is new
		t.Firer.Fire(ctx, 1, 0)
		if cancelled, _ = h.rdb.HGet(ctx, h.keys.Stats, "cancelled").Int(); cancelled == 0 {
			_, _ = h.tryTake("", 10, time.Hour)
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
	for line := range strings.Lines(proseFile(t, aclFile)) {
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
		require.NoError(t, admin.ZAdd(ctx, setting.keys.Held, redis.Z{Score: 1, Member: "key"}).Err())    // a hold that is over
		require.NoError(t, admin.ZAdd(ctx, setting.keys.Turn, redis.Z{Member: ""}).Err())                 // ready takes turns
		require.NoError(t, admin.ZRem(ctx, setting.keys.Bucket, "back").Err())                            // for a check to find
		require.NoError(t, admin.ZAdd(ctx, setting.keys.Idle, redis.Z{Score: 1, Member: "nobody"}).Err()) // to be rung
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
	for line := range strings.Lines(proseFile(t, aclFile)) {
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
type deed func(ctx context.Context, c *Client, topic string) error

// deeds are all calls of a Client and of an Inspector that ask Redis anything. Where a call does
// different things for different arguments, each has an entry: all of them must be allowed, or
// none.
var deeds = map[string][]deed{
	"Enqueue": {
		func(ctx context.Context, c *Client, topic string) error {
			_, err := c.Enqueue(ctx, topic, "new", nil)
			return err
		},
		func(ctx context.Context, c *Client, topic string) error {
			_, err := c.Enqueue(ctx, topic, "running", nil, ProcessIn(time.Second/2), Replace())
			return err
		},
		func(ctx context.Context, c *Client, topic string) error {
			_, err := c.Enqueue(ctx, topic, "dead", nil, Replace())
			return err
		},
	},
	"EnqueueBatch": {func(ctx context.Context, c *Client, topic string) error {
		_, err := c.EnqueueBatch(ctx, []NewJob{{Topic: topic, ID: "new"}, {Topic: topic, ID: "later", Options: []JobOption{ProcessIn(time.Hour)}}})
		return err
	}},
	"CancelBatch": {func(ctx context.Context, c *Client, topic string) error {
		_, err := c.CancelBatch(ctx, []JobRef{{topic, "scheduled"}, {topic, "ready"}, {topic, "running"}, {topic, "dead"}})
		return err
	}},
	"SetPriority": {func(ctx context.Context, c *Client, topic string) error {
		_, err := c.Enqueue(ctx, topic, "of a key", nil, Key("key"), ProcessIn(time.Hour))
		return errors.Join(err, c.SetPriority(ctx, topic, "of a key", time.Hour))
	}},
	"RescheduleBatch": {func(ctx context.Context, c *Client, topic string) error {
		_, err := c.RescheduleBatch(ctx, []NewDue{{topic, "scheduled", ProcessIn(0)}, {topic, "ready", ProcessIn(time.Second / 2)}})
		return err
	}},
	"GetBatch": {func(ctx context.Context, c *Client, topic string) error {
		_, err := c.GetBatch(ctx, []JobRef{{topic, "scheduled"}})
		return err
	}},
	"Dequeue": {dequeue("scheduled"), dequeue("ready"), dequeue("running"), dequeue("dead")},
	"Reschedule": {
		func(ctx context.Context, c *Client, topic string) error {
			return c.Reschedule(ctx, topic, "scheduled", ProcessIn(0))
		},
		func(ctx context.Context, c *Client, topic string) error {
			return c.Reschedule(ctx, topic, "ready", ProcessIn(time.Second/2))
		},
	},
	"Get": {get("scheduled"), get("running"), get("dead"), get("done")},
	"Inspector.Jobs": {func(ctx context.Context, c *Client, topic string) error {
		_, err := inspectorOf(c).Jobs(ctx, Query{Topic: topic, State: StateReady})
		return err
	}},
	"Inspector.All": {jobs(StateScheduled), jobs(StateReady), jobs(StateRunning), jobs(StateDead), jobs(StateDone)},
	"Inspector.Count": {func(ctx context.Context, c *Client, topic string) error {
		_, _, err := inspectorOf(c).Count(ctx, Query{Topic: topic, State: StateReady})
		return err
	}},
	"Inspector.Failures": {func(ctx context.Context, c *Client, topic string) error {
		_, err := inspectorOf(c).Failures(ctx, topic, StateDead, 0)
		return err
	}},
	"Inspector.Key": {func(ctx context.Context, c *Client, topic string) error {
		_, err := inspectorOf(c).Key(ctx, topic, "key")
		return err
	}},
	"Inspector.Keys": {func(ctx context.Context, c *Client, topic string) error {
		_, err := inspectorOf(c).Keys(ctx, topic, "", 10)
		return err
	}},
	"Inspector.Stats": {func(ctx context.Context, c *Client, topic string) error {
		_, err := inspectorOf(c).Stats(ctx, topic)
		return err
	}},
	"Inspector.Topics": {func(ctx context.Context, c *Client, _ string) error {
		_, err := inspectorOf(c).Topics(ctx)
		return err
	}},
	"Inspector.Servers": {func(ctx context.Context, c *Client, _ string) error {
		_, err := inspectorOf(c).Servers(ctx)
		return err
	}},
	"Inspector.Forecast": {func(ctx context.Context, c *Client, topic string) error {
		_, err := inspectorOf(c).Forecast(ctx, topic, time.Now(), time.Minute, 60)
		return err
	}},
	"Inspector.History": {
		func(ctx context.Context, c *Client, topic string) error {
			_, err := inspectorOf(c).History(ctx, topic, time.Now().Add(-time.Hour), time.Now(), time.Minute)
			return err
		},
		func(ctx context.Context, c *Client, topic string) error {
			_, err := inspectorOf(c).History(ctx, topic, time.Now().Add(-time.Hour), time.Now(), time.Hour)
			return err
		},
	},
	"Inspector.DueWithin": {func(ctx context.Context, c *Client, topic string) error {
		_, err := inspectorOf(c).DueWithin(ctx, time.Now(), []time.Duration{time.Minute}, topic)
		return err
	}},
	"Inspector.Find": {func(ctx context.Context, c *Client, _ string) error {
		_, err := inspectorOf(c).Find(ctx, "dead")
		return err
	}},
	"Inspector.Audit": {func(ctx context.Context, c *Client, _ string) error {
		_, err := inspectorOf(c).Audit(ctx, 10)
		return err
	}},
	"Inspector.Explain": {
		func(ctx context.Context, c *Client, topic string) error {
			_, err := inspectorOf(c).Explain(ctx, topic, "ready")
			return err
		},
		func(ctx context.Context, c *Client, topic string) error {
			_, err := inspectorOf(c).Explain(ctx, topic, "none")
			return err
		},
	},
	"Inspector.Redis": {func(ctx context.Context, c *Client, _ string) error {
		_, err := inspectorOf(c).Redis(ctx)
		return err
	}},
	"Inspector.Job": {
		func(ctx context.Context, c *Client, topic string) error {
			_, err := inspectorOf(c).Job(ctx, topic, "dead")
			return err
		},
	},
	"Inspector.Check": {
		func(ctx context.Context, c *Client, topic string) error {
			_, err := inspectorOf(c).Check(ctx, topic)
			return err
		},
	},
	"Repair": {
		func(ctx context.Context, c *Client, topic string) error {
			_, err := c.Repair(ctx, topic)
			return err
		},
	},
	"Pause": {
		func(ctx context.Context, c *Client, topic string) error { return c.Pause(ctx, topic, Pause{}) },
		func(ctx context.Context, c *Client, topic string) error {
			return c.Pause(ctx, topic, Pause{For: time.Hour})
		},
	},
	"SetLimits": {
		func(ctx context.Context, c *Client, topic string) error {
			return c.SetLimits(ctx, topic, Limits{Running: 1000})
		},
		func(ctx context.Context, c *Client, topic string) error {
			return c.SetLimits(ctx, topic, Limits{Running: 1000, RunningPerKey: 1000})
		},
	},
	"SetKeyLimits": {
		func(ctx context.Context, c *Client, topic string) error {
			return c.SetKeyLimits(ctx, topic, "key", KeyLimits{Weight: 2})
		},
		func(ctx context.Context, c *Client, topic string) error {
			return c.SetKeyLimits(ctx, topic, "key", KeyLimits{Running: 1000})
		},
	},
	"HoldKey": {
		func(ctx context.Context, c *Client, topic string) error {
			return c.HoldKey(ctx, topic, "key", time.Millisecond)
		},
	},
	"PauseKey":  {func(ctx context.Context, c *Client, topic string) error { return c.PauseKey(ctx, topic, "key") }},
	"ResumeKey": {func(ctx context.Context, c *Client, topic string) error { return c.ResumeKey(ctx, topic, "key") }},
	"Hold": {
		func(ctx context.Context, c *Client, topic string) error {
			return c.Hold(ctx, topic, time.Millisecond, "why")
		},
	},
	"EndHold":   {func(ctx context.Context, c *Client, topic string) error { return c.EndHold(ctx, topic) }},
	"Resume":    {func(ctx context.Context, c *Client, topic string) error { return c.Resume(ctx, topic, "ops") }},
	"ResumeAll": {func(ctx context.Context, c *Client, topic string) error { return c.ResumeAll(ctx, topic) }},
	"Delete":    {func(ctx context.Context, c *Client, topic string) error { return c.Delete(ctx, topic, "done") }},
	"Revive":    {func(ctx context.Context, c *Client, topic string) error { return c.Revive(ctx, topic, "dead") }},
	"Bury": {
		func(ctx context.Context, c *Client, topic string) error {
			return c.Bury(ctx, topic, "scheduled", "why")
		},
		func(ctx context.Context, c *Client, topic string) error { return c.Bury(ctx, topic, "ready", "why") },
	},
	"Apply": {
		func(ctx context.Context, c *Client, topic string) error {
			_, err := c.Apply(ctx, Query{Topic: topic, State: StateScheduled}, Cancel())
			return err
		},
		func(ctx context.Context, c *Client, topic string) error {
			_, err := c.Apply(ctx, Query{Topic: topic, State: StateScheduled}, RunNow())
			return err
		},
		func(ctx context.Context, c *Client, topic string) error {
			_, err := c.Apply(ctx, Query{Topic: topic, State: StateReady}, BuryBecause("why"))
			return err
		},
		func(ctx context.Context, c *Client, topic string) error {
			_, err := c.Apply(ctx, Query{Topic: topic, State: StateDead}, ReviveDead(), Spread(time.Second/2))
			return err
		},
		func(ctx context.Context, c *Client, topic string) error {
			_, err := c.Apply(ctx, Query{Topic: topic, State: StateDone}, Purge())
			return err
		},
	},
	"RemoveTopic": {func(ctx context.Context, c *Client, topic string) error {
		if err := c.RemoveTopic(ctx, topic); !errors.Is(err, ErrNotEmpty) {
			return err
		}
		return nil
	}},
	"Schedule": {
		func(ctx context.Context, c *Client, topic string) error {
			return c.Schedule(ctx, topic, "new", Every(time.Hour), nil)
		},
		func(ctx context.Context, c *Client, topic string) error {
			return c.Schedule(ctx, topic, "s", Every(time.Second/2), nil, DiscardEdits())
		},
	},
	"EditSchedule": {func(ctx context.Context, c *Client, topic string) error {
		return c.EditSchedule(ctx, topic, "s", func(def *ScheduleDefinition) error { def.EditedBy = "me"; def.Payload = []byte("new"); return nil })
	}},
	"Unschedule":     {func(ctx context.Context, c *Client, topic string) error { return c.Unschedule(ctx, topic, "s") }},
	"PauseSchedule":  {func(ctx context.Context, c *Client, topic string) error { return c.PauseSchedule(ctx, topic, "s") }},
	"ResumeSchedule": {func(ctx context.Context, c *Client, topic string) error { return c.ResumeSchedule(ctx, topic, "s") }},
	"Trigger": {func(ctx context.Context, c *Client, topic string) error {
		_, err := c.Trigger(ctx, topic, "s")
		return err
	}},
	"Inspector.Schedules": {func(ctx context.Context, c *Client, topic string) error {
		_, err := inspectorOf(c).Schedules(ctx, topic)
		return err
	}},
	"Inspector.Schedule": {func(ctx context.Context, c *Client, topic string) error {
		_, err := inspectorOf(c).Schedule(ctx, topic, "s")
		return err
	}},
	"Inspector.Runs": {func(ctx context.Context, c *Client, topic string) error {
		_, err := inspectorOf(c).Runs(ctx, topic, "s", 10)
		return err
	}},
}

func dequeue(id string) deed {
	return func(ctx context.Context, c *Client, topic string) error {
		_, err := c.Dequeue(ctx, topic, id)
		return err
	}
}

func get(id string) deed {
	return func(ctx context.Context, c *Client, topic string) error { _, err := c.Get(ctx, topic, id); return err }
}

// jobs reads pages of jobs. The second one begins at the place where the first one ends.
func jobs(state State) deed {
	return func(ctx context.Context, c *Client, topic string) error {
		for _, err := range inspectorOf(c).All(ctx, Query{Topic: topic, State: state, Limit: 1}) {
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
	table := redistest.CallRoles(proseFile(t, "docs/security.md"))
	want := slices.Collect(maps.Keys(deeds))
	for i := range reflect.TypeFor[*Client]().NumMethod() {
		require.Contains(t, want, reflect.TypeFor[*Client]().Method(i).Name, "a call that nobody tries")
	}
	for i := range reflect.TypeFor[*Inspector]().NumMethod() {
		if name := reflect.TypeFor[*Inspector]().Method(i).Name; name != "Prefix" { // which asks Redis nothing
			require.Contains(t, want, "Inspector."+name, "a call that nobody tries")
		}
	}
	for i := range reflect.TypeFor[*Server]().NumMethod() {
		if name := reflect.TypeFor[*Server]().Method(i).Name; !slices.Contains(serverCalls, name) {
			require.Equal(t, "Run", name, "a call that nobody tries")
		}
	}
	require.ElementsMatch(t, append(want, "Run"), slices.Collect(maps.Keys(table)), "the calls of the table")

	file, err := filepath.Abs(aclFile)
	require.NoError(t, err)
	rs := redistest.Start(t, "--aclfile", file)
	admin := rs.Client(t)
	for _, role := range tourRoles {
		rdb := aclClient(t, rs, role)
		for name, list := range deeds {
			for i, call := range list {
				what := fmt.Sprintf("%s %d as the %s", name, i, role)
				h := aclStage(t, admin, script.DefaultPrefix, fmt.Sprint(role, name, i))
				before := Dump(t, admin, script.DefaultPrefix)
				err := call(t.Context(), NewClient(rdb), h.keys.Topic)
				if slices.Contains(table[name], role) {
					require.NoError(t, err, what)
					nothingDenied(t, admin)
					continue
				}
				require.Error(t, err, what)
				require.Regexp(t, refusal, err.Error(), what)
				require.Equal(t, before, Dump(t, admin, script.DefaultPrefix), what)
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
	table := redistest.CallRoles(proseFile(t, "docs/security.md"))
	rs := redistest.Start(t, redistest.NoRoles...)
	admin := rs.Client(t)
	for what, c := range map[string]struct{ wide, narrow, prefix, topic string }{
		"a topic":        {"delayq:{*}:", "delayq:{mail}:", "delayq", "mail"},
		"another prefix": {"delayq:", "shop:", "shop", "post"},
	} {
		for line := range strings.Lines(proseFile(t, aclFile)) {
			setuser := []any{"ACL", "SETUSER"}
			for _, word := range strings.Fields(line)[1:] {
				setuser = append(setuser, strings.Replace(word, c.wide, c.narrow, 1))
			}
			require.NoError(t, admin.Do(t.Context(), setuser...).Err())
		}
		for _, role := range tourRoles {
			rdb := aclClient(t, rs, role)
			for name, list := range deeds {
				if !slices.Contains(table[name], role) || what == "a topic" && slices.Contains(ofThePrefix, name) || name == "Inspector.Redis" {
					continue
				}
				for i, call := range list {
					what := fmt.Sprintf("%s: %s %d as the %s", what, name, i, role)
					aclStage(t, admin, c.prefix, c.topic)
					require.NoError(t, call(t.Context(), NewClient(rdb, Prefix(c.prefix)), c.topic), what)
					nothingDenied(t, admin)

					aclStage(t, admin, script.DefaultPrefix, "post")
					before := Dump(t, admin, script.DefaultPrefix)
					err := call(t.Context(), NewClient(rdb), "post")
					require.Error(t, err, what)
					require.Regexp(t, refusal, err.Error(), what)
					require.Equal(t, before, Dump(t, admin, script.DefaultPrefix), what)
				}
			}
		}
	}
}

// aclStage makes a topic with a job in each state and a schedule, a server and a pause, and nothing
// else.
func aclStage(t *testing.T, admin *redis.Client, prefix, topic string) *Hand {
	t.Helper()
	ctx := t.Context()
	require.NoError(t, admin.FlushAll(ctx).Err()) // a Redis of the test's own
	h := NewHand(t, admin, prefix, topic)
	c := h.client()
	for _, id := range []string{"done", "dead", "running"} {
		_, err := c.Enqueue(ctx, topic, id, nil, Retention(time.Hour))
		require.NoError(t, err)
	}
	held := h.Take(3, time.Hour)
	require.Equal(t, "o", h.Ack(held[0]))
	require.Equal(t, "o", h.Bury(held[1]))
	h.put("+3600000", "scheduled", "nowhere")
	require.NoError(t, admin.ZRem(ctx, h.keys.Bucket, "nowhere").Err()) // for Check to find
	h.put("+0", "ready")
	require.NoError(t, c.Schedule(ctx, topic, "s", Every(time.Hour), nil))
	require.NoError(t, c.Pause(ctx, topic, Pause{By: "ops"}))
	_, err := h.try(script.Heartbeat, []any{script.ServersKey(prefix)}, "server", "{}")
	require.NoError(t, err)
	require.NoError(t, admin.HSet(ctx, h.keys.Hours, 472222%720, "472222 acked 3").Err()) // 1,700,000,000 s after 1970
	require.NoError(t, admin.Do(ctx, "ACL", "LOG", "RESET").Err())
	return h
}

// aclClient is a client of one of the users of the ACL file.
func aclClient(t *testing.T, rs *redistest.Server, role string) *redis.Client {
	t.Helper()
	opt := rs.Options()
	opt.Username, opt.Password, opt.DisableIdentity = "delayq-"+role, "change-me-"+role, true
	rdb := redis.NewClient(opt)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// aclServes reports whether a server with the rights of a role runs a job.
func aclServes(t *testing.T, admin, rdb *redis.Client, role string) bool {
	t.Helper()
	h := aclStage(t, admin, script.DefaultPrefix, "run"+role)
	require.NoError(t, h.client().ResumeAll(t.Context(), h.keys.Topic))
	ended := make(chan bool, 1000)
	s := NewServer(rdb, Logger(slog.New(slog.DiscardHandler)), Hooks(
		doneHook(func() { ended <- true }),
		takeHook(func(e ScriptEvent) {
			if e.Name == "take" && e.Err != nil && strings.Contains(e.Err.Error(), "NOPERM") {
				ended <- false
			}
		})))
	s.HandlerFunc(h.keys.Topic, func(context.Context, *Job) error { return nil })
	run, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- s.Run(run) }()
	defer func() {
		stop()
		<-over
	}()
	return <-ended
}

type takeHook func(ScriptEvent)

func (f takeHook) Script(e ScriptEvent) { f(e) }

// With DELAYQ_ROLES (internal/redistest/roles.go) the tests on a real Redis are made as the users
// of docs/acl/delayq.acl: a server is a worker, a client's call is the producer's or the operator's
// as docs/security.md has it, and a Hand's is that of whoever runs the script. A call that two
// roles may make is made by both in turn.

func init() { redistest.RoleOf = roleOf }

// scriptRoles are the roles that may run a script.
var scriptRoles = map[*script.Script][]string{
	script.Enqueue: {"producer"}, script.EnqueueKeyed: {"producer"}, script.Replace: {"producer"}, script.ScheduleSet: {"producer", "operator"},
	script.Promote: {"worker"}, script.Take: {"worker"}, script.Extend: {"worker"}, script.Ack: {"worker"}, script.Again: {"worker"}, script.Retry: {"worker"},
	script.Snooze: {"worker"}, script.GiveBack: {"worker"}, script.Bury: {"worker"}, script.Prune: {"worker"}, script.Heartbeat: {"worker"},
	script.ScheduleDue: {"worker"}, script.ScheduleFire: {"worker"}, script.Watch: {"worker"},
	script.Ring: {"worker"}, script.Unpark: {"worker", "operator"}, script.Survey: {"worker"}, script.Chronicle: {"worker"},
	script.Check: {"worker", "operator"}, script.Mend: {"worker", "operator"},
	script.Revive: {"operator"}, script.Delete: {"operator"}, script.Page: {"operator"}, script.Inspect: {"operator"}, script.Explain: {"operator"}, script.ListKeys: {"operator"}, script.Pause: {"operator"}, script.Hold: {"operator"}, script.Limits: {"operator"}, script.SetPriority: {"producer", "operator"}, script.KeyLimits: {"operator"}, script.KeyHold: {"operator"}, script.Audit: {"operator"}, script.BuryWaiting: {"operator"}, script.RemoveTopic: {"operator"}, script.SchedulePause: {"operator"},
	script.Cancel: {"producer", "operator"}, script.Reschedule: {"producer", "operator"}, script.Get: {"producer", "operator"},
	script.ScheduleRemove: {"producer", "operator"}, script.ScheduleTrigger: {"producer", "operator"}, script.ScheduleInfo: {"producer", "operator"},
}

func roleOf(call redistest.Call) (role, what string) {
	if role, what := redistest.MethodRole(call); role != "" {
		return role, what
	}
	inTurn := func(roles []string) string { return roles[call.Turn%uint(len(roles))] }
	switch call.Cmd.Name() { // by a Hand, or by a test of the function
	case "type":
		key := call.Cmd.Args()[1].(string)
		return inTurn(slices.DeleteFunc(slices.Clone(tourRoles), func(role string) bool { return !mayUse(role, key) })), "type"
	case "eval", "evalsha", "eval_ro", "evalsha_ro":
		for s, roles := range scriptRoles {
			if what := call.Cmd.Args()[1]; what == s.Digest || what == s.Text {
				return inTurn(roles), s.Name
			}
		}
	}
	return "", ""
}

// aclText is the text of the ACL file.
var aclText = sync.OnceValue(func() string {
	text, err := os.ReadFile(redistest.Path(aclFile))
	if err != nil {
		panic(err)
	}
	return string(text)
})

// mayUse reports whether a role has a right to a key.
func mayUse(role, key string) bool {
	pattern := "~delayq" + key[strings.LastIndexByte(key, ':'):]
	if _, name, ok := strings.Cut(key, "}:"); ok {
		name, _, several := strings.Cut(name, ":")
		if pattern = "~delayq:{*}:" + name; several {
			pattern += ":*"
		}
	}
	for line := range strings.Lines(aclText()) {
		if words := strings.Fields(line); words[1] == "delayq-"+role {
			return slices.Contains(words, pattern)
		}
	}
	return false
}

// AsWorker makes a server the worker, if the client that it was given is divided among the roles.
func AsWorker(s *Server) *Server {
	rdb, test := redistest.Worker(s.engine.Redis, s.o.prefix)
	if test != "" {
		s.engine.Redis = rdb
		s.o.hooks.script = append(s.o.hooks.script, workerCalls{test})
	}
	return s
}

// workerCalls counts what servers call.
type workerCalls struct{ test string }

func (w workerCalls) Script(e ScriptEvent) { redistest.Count("worker", e.Name, w.test) }

// RolesError returns what no role has asked for in all tests.
func RolesError() error {
	var errs []error
	for method, roles := range redistest.MethodRoles() {
		for _, role := range roles {
			if tally := redistest.Tallies()[role]; tally == nil || tally.Did[method] == 0 {
				errs = append(errs, fmt.Errorf("no test has called %s as the %s", method, role))
			}
		}
	}
	for s, roles := range scriptRoles {
		if slices.Contains(roles, "worker") {
			if tally := redistest.Tallies()["worker"]; tally == nil || tally.Did[s.Name] == 0 {
				errs = append(errs, fmt.Errorf("no server has called %s", s.Name))
			}
		}
	}
	return errors.Join(errs...)
}

// With DELAYQ_ROLES, each role makes each call that the table gives it.
func TestEachRoleMakesItsCalls(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t)
	rdb := rs.Client(t)
	for name, roles := range redistest.MethodRoles() {
		for i := range max(len(roles), len(deeds[name])) { // the roles take turns
			what := fmt.Sprint(name, " ", i)
			h := aclStage(t, rdb, script.DefaultPrefix, fmt.Sprint(name, i))
			require.NoError(t, deeds[name][i%len(deeds[name])](t.Context(), h.client(), h.keys.Topic), what)
			nothingDenied(t, rdb)
		}
	}
}

// A test asks as the user default, which cannot run scripts, the library as its users, and
// what is denied to these is told. Here with or without DELAYQ_ROLES.
func TestCallsAreMadeByTheUsers(t *testing.T) {
	t.Setenv("DELAYQ_ROLES", aclFile)
	rs := redistest.Start(t)
	rdb, ctx := rs.Client(t), t.Context()
	client := NewClient(rdb, Prefix("other"))
	acked := make(chan struct{}, 1)
	server := AsWorker(NewServer(rdb, Prefix("other"), Logger(slog.New(slog.DiscardHandler)), Hooks(doneHook(func() { acked <- struct{}{} }))))
	server.HandlerFunc("topic", func(context.Context, *Job) error { return rdb.Ping(ctx).Err() })
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
	methods := reflect.TypeFor[*Client]()
	for i := range methods.NumMethod() {
		require.NotEmpty(t, redistest.MethodRoles()[methods.Method(i).Name], methods.Method(i).Name)
	}
	readers := reflect.TypeFor[*Inspector]()
	for i := range readers.NumMethod() {
		if name := readers.Method(i).Name; name != "Prefix" { // which asks Redis nothing
			require.NotEmpty(t, redistest.MethodRoles()["Inspector."+name], name)
		}
	}
	require.Len(t, redistest.MethodRoles(), methods.NumMethod()+readers.NumMethod()-1)
	for _, s := range script.All {
		require.NotEmpty(t, scriptRoles[s], s.Name)
	}
	require.Len(t, scriptRoles, len(script.All))
}
