package delayq

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
)

// A deed is a call of the library on a stage, which succeeds if Redis refuses nothing.
type deed func(ctx context.Context, c *Client, topic string) error

// deeds are all calls of a Client that ask Redis anything. Where a call does different things for
// different arguments, each has an entry: all of them must be allowed, or none.
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
	"Dequeue": {dequeue("scheduled"), dequeue("ready"), dequeue("running"), dequeue("dead")},
	"Reschedule": {
		func(ctx context.Context, c *Client, topic string) error {
			return c.Reschedule(ctx, topic, "scheduled", ProcessIn(0))
		},
		func(ctx context.Context, c *Client, topic string) error {
			return c.Reschedule(ctx, topic, "ready", ProcessIn(time.Second/2))
		},
	},
	"Get":     {get("scheduled"), get("running"), get("dead"), get("done")},
	"List":    {list(StateScheduled), list(StateReady), list(StateRunning), list(StateDead), list(StateDone)},
	"Inspect": {func(ctx context.Context, c *Client, topic string) error { _, err := c.Inspect(ctx, topic); return err }},
	"Topics":  {func(ctx context.Context, c *Client, _ string) error { _, err := c.Topics(ctx); return err }},
	"Servers": {func(ctx context.Context, c *Client, _ string) error { _, err := c.Servers(ctx); return err }},
	"Check": {
		func(ctx context.Context, c *Client, topic string) error {
			_, err := c.Check(ctx, topic)
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
	"Resume":    {func(ctx context.Context, c *Client, topic string) error { return c.Resume(ctx, topic, "ops") }},
	"ResumeAll": {func(ctx context.Context, c *Client, topic string) error { return c.ResumeAll(ctx, topic) }},
	"Delete":    {func(ctx context.Context, c *Client, topic string) error { return c.Delete(ctx, topic, "done") }},
	"Revive":    {func(ctx context.Context, c *Client, topic string) error { return c.Revive(ctx, topic, "dead") }},
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
	"Schedules": {func(ctx context.Context, c *Client, topic string) error {
		_, err := c.Schedules(ctx, topic)
		return err
	}},
	"ScheduleInfo": {func(ctx context.Context, c *Client, topic string) error {
		_, err := c.ScheduleInfo(ctx, topic, "s")
		return err
	}},
	"Runs": {func(ctx context.Context, c *Client, topic string) error {
		_, err := c.Runs(ctx, topic, "s", 10)
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

func list(state State) deed {
	return func(ctx context.Context, c *Client, topic string) error {
		_, err := c.List(ctx, topic, ListQuery{State: state, Limit: 10})
		return err
	}
}

// serverCalls are what a Server has beside Run, and none of it asks Redis anything.
var serverCalls = []string{"Calendar", "Handle", "HandlerFunc", "ID", "Use"}

// Each call of the library, made as each user of the ACL file on a real Redis, is carried out or
// refused as the table in docs/security.md says; what is refused has changed nothing.
func TestACLIsTheTableOfCalls(t *testing.T) {
	t.Parallel()
	table := redistest.CallRoles(proseFile(t, "docs/security.md"))
	want := slices.Collect(maps.Keys(deeds))
	for i := range reflect.TypeFor[*Client]().NumMethod() {
		require.Contains(t, want, reflect.TypeFor[*Client]().Method(i).Name, "a call that nobody tries")
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
				h := aclStage(t, admin, defaultPrefix, fmt.Sprint(role, name, i))
				before := Dump(t, admin, defaultPrefix)
				err := call(t.Context(), NewClient(rdb), h.keys.topic)
				if slices.Contains(table[name], role) {
					require.NoError(t, err, what)
					nothingDenied(t, admin)
					continue
				}
				require.Error(t, err, what)
				require.Regexp(t, refusal, err.Error(), what)
				require.Equal(t, before, Dump(t, admin, defaultPrefix), what)
			}
		}
		require.Equal(t, slices.Contains(table["Run"], role), aclServes(t, admin, rdb, role), "Run as the %s", role)
	}
}

// refusal is how Redis refuses a call, and a command within a script.
const refusal = "NOPERM|can't run this command|can't access"

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
				if !slices.Contains(table[name], role) || what == "a topic" && (name == "Topics" || name == "Servers") {
					continue
				}
				for i, call := range list {
					what := fmt.Sprintf("%s: %s %d as the %s", what, name, i, role)
					aclStage(t, admin, c.prefix, c.topic)
					require.NoError(t, call(t.Context(), NewClient(rdb, Prefix(c.prefix)), c.topic), what)
					nothingDenied(t, admin)

					aclStage(t, admin, defaultPrefix, "post")
					before := Dump(t, admin, defaultPrefix)
					err := call(t.Context(), NewClient(rdb), "post")
					require.Error(t, err, what)
					require.Regexp(t, refusal, err.Error(), what)
					require.Equal(t, before, Dump(t, admin, defaultPrefix), what)
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
	require.NoError(t, admin.ZRem(ctx, h.keys.bucket, "nowhere").Err()) // for Check to find
	h.put("+0", "ready")
	require.NoError(t, c.Schedule(ctx, topic, "s", Every(time.Hour), nil))
	require.NoError(t, c.Pause(ctx, topic, Pause{By: "ops"}))
	_, err := h.try(heartbeatScript, []any{serversKey(prefix)}, "server", "{}")
	require.NoError(t, err)
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
	h := aclStage(t, admin, defaultPrefix, "run"+role)
	require.NoError(t, h.client().ResumeAll(t.Context(), h.keys.topic))
	ended := make(chan bool, 1000)
	s := NewServer(rdb, Logger(slog.New(slog.DiscardHandler)), Hooks(
		doneHook(func() { ended <- true }),
		takeHook(func(e ScriptEvent) {
			if e.Name == "take" && e.Err != nil && strings.Contains(e.Err.Error(), "NOPERM") {
				ended <- false
			}
		})))
	s.HandlerFunc(h.keys.topic, func(context.Context, *Job) error { return nil })
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
