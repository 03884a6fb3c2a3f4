package delayq

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
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
		list = append(list, func(ctx context.Context, h *Hand, _ Held) { f(ctx, h.client(), h.keys.topic) })
	}
	cancelAll := func(_ context.Context, h *Hand, _ Held) { // the last lease goes
		for _, id := range []string{"running", "lapsed"} {
			_, _ = h.tryCancel(id)
		}
	}
	check := func() {
		asClient(func(ctx context.Context, c *Client, topic string) { _, _ = c.Repair(ctx, topic) })
	}
	list = append(list, func(ctx context.Context, h *Hand, _ Held) {
		_ = h.rdb.Set(ctx, h.keys.leases, "a slip", 0).Err()
		_, _ = h.client().Get(ctx, h.keys.topic, "x")
	})
	switch role {
	case "producer":
		raw("enqueue now", "enqueue later", "replace running", "replace dead", "cancel running", "cancel dead", "reschedule ready", "reschedule to now")
		asClient(func(ctx context.Context, c *Client, topic string) {
			_, _ = c.Enqueue(ctx, topic, "", nil)
			_, _ = c.Get(ctx, topic, "dead")
			_, _ = c.ScheduleInfo(ctx, topic, "s")
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
			_ = h.rdb.BLMove(ctx, h.keys.ready, h.keys.handoff, "LEFT", "RIGHT", time.Second).Err()
			_ = h.rdb.SAdd(ctx, topicsKey(defaultPrefix), h.keys.topic).Err()
			_ = h.rdb.Info(ctx).Err()
			_ = h.rdb.HScan(ctx, serversKey(defaultPrefix), 0, "", 100).Err()
			_ = h.rdb.HDel(ctx, serversKey(defaultPrefix), "nobody").Err()
			sub := h.rdb.Subscribe(ctx, controlChannel(defaultPrefix))
			_, _ = sub.Receive(ctx)
			_ = sub.Ping(ctx)
			_, _ = sub.Receive(ctx)
			_ = sub.Close()
			_, _ = h.try(heartbeatScript, []any{serversKey(defaultPrefix)}, "acl", "{}")
		}, func(_ context.Context, h *Hand, running Held) { // the last lease goes
			_, _ = h.tryPromote(1000, 0)
			_, _ = h.settle([]Held{running}, row{verb: verbAck})
		})
		list = append(list, fireSome)
		check()
	case "operator":
		raw("cancel running", "cancel dead", "reschedule ready", "reschedule to now", "revive")
		asClient(func(ctx context.Context, c *Client, topic string) {
			for _, state := range []State{StateScheduled, StateReady, StateRunning, StateDead} {
				_, _ = c.List(ctx, topic, ListQuery{State: state, Limit: 10})
			}
			_, _ = c.Inspect(ctx, topic)
			_, _ = c.ScheduleInfo(ctx, topic, "s")
			_, _ = c.Topics(ctx)
			_, _ = c.Servers(ctx)
			_ = c.Pause(ctx, topic, Pause{By: "me", Reason: "because", For: time.Hour})
			_ = c.Resume(ctx, topic, "me")
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
	topic := h.keys.topic
	s := NewServer(h.rdb, Logger(slog.New(slog.DiscardHandler)))
	s.HandlerFunc(topic, func(context.Context, *Job) error { return nil })
	if s.begin() != nil {
		return
	}
	defer s.close()
	t := s.topics[topic]
	t.base = ctx
	_ = h.client().Schedule(ctx, topic, "s", Every(time.Millisecond), nil, OverlapCancelPrevious)
	for cancelled, try := 0, 0; cancelled < 3 && try < 500; try++ { // the slots come by themselves
		t.firer.idle = 0 // look again, though nothing is new
		t.firer.fire(ctx, 1, 0)
		if cancelled, _ = h.rdb.HGet(ctx, h.keys.stats, "cancelled").Int(); cancelled == 0 {
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
		t.Skip("three roles, and all the rights of each")
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
		keys, err := admin.Keys(ctx, defaultPrefix+":*").Result()
		require.NoError(t, err)
		if len(keys) > 0 {
			require.NoError(t, admin.Del(ctx, keys...).Err())
		}
		setting := NewHand(t, admin, defaultPrefix, topic)
		running, _ := stage(setting)
		require.NoError(t, admin.ZRem(ctx, setting.keys.bucket, "back").Err()) // for a check to find
		duty(ctx, NewHand(t, rdb, defaultPrefix, topic), running)
		denied, err := admin.ACLLog(ctx, 100).Result()
		require.NoError(t, err)
		for _, entry := range denied {
			switch {
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
