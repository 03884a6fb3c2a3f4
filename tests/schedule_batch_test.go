package tests

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// daily returns a schedule of the topic "topic".
func daily(name string, opts ...delayq.ScheduleOption) delayq.NewSchedule {
	return delayq.NewSchedule{Topic: "topic", Name: name, Spec: delayq.Cron("@daily", ""), Payload: []byte("of " + name), Options: opts}
}

// Each schedule of a batch has the outcome that a call of its own would have.
func TestScheduleBatchHasAnOutcomePerSchedule(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		for _, name := range []string{"same", "changed", "edited", "present"} {
			require.NoError(t, f.Client.Schedule(ctx, "topic", name, delayq.Cron("@daily", ""), []byte("of "+name)))
		}
		edit := func(d *delayq.ScheduleDefinition) error {
			d.Payload = []byte("edited")
			return nil
		}
		require.NoError(t, f.Client.EditSchedule(ctx, "topic", "edited", edit))
		elsewhere := daily("new")
		elsewhere.Topic = "other"
		list := []delayq.NewSchedule{
			daily("new"), daily("same"), daily("changed", delayq.MaxRuns(3)), daily("edited", delayq.MaxRuns(4)),
			daily("present", delayq.MaxRuns(5), delayq.IfAbsent()), daily("absent", delayq.IfAbsent()), elsewhere, daily("new", delayq.MaxRuns(6)),
			daily("bad{"), {Topic: "topic", Name: "no spec"}, daily("late", delayq.EndAt(time.UnixMilli(1))),
		}
		results, err := f.Client.ScheduleBatch(ctx, list)
		require.ErrorContains(t, err, "schedule batch: 4 of 11 schedules failed: ")
		require.ErrorIs(t, err, delayq.ErrInvalid)
		for i, want := range []string{"changed", "", "changed", "changed", "", "changed", "changed", "invalid", "invalid", "invalid", "invalid"} {
			require.Equal(t, want == "changed", results[i].Changed, i)
			if want != "invalid" {
				require.NoError(t, results[i].Err, i)
				continue
			}
			require.ErrorIs(t, results[i].Err, delayq.ErrInvalid, i)
			require.ErrorContains(t, results[i].Err, fmt.Sprintf("schedule topic %q schedule %q: ", list[i].Topic, list[i].Name))
		}
		require.ErrorContains(t, results[7].Err, "schedule 7 of the batch")
		require.NoError(t, delayq.ErrorsExcept(results, err, delayq.ErrInvalid))
		require.ErrorContains(t, delayq.ErrorsExcept(results, err), "4 of 11 schedules failed")

		options := func(topic, name string) string {
			info, err := f.Inspector.Schedule(ctx, topic, name)
			require.NoError(t, err, name)
			require.NotZero(t, info.NextSlot, name)
			return fmt.Sprint(string(info.Payload), " ", info.MaxRuns, " ", info.Edited)
		}
		require.Equal(t, "of new 0 []", options("topic", "new"))
		require.Equal(t, "of changed 3 []", options("topic", "changed"))
		require.Equal(t, "edited 4 [Payload]", options("topic", "edited"))
		require.Equal(t, "of present 0 []", options("topic", "present"))
		require.Equal(t, "of absent 0 []", options("topic", "absent"))
		require.Equal(t, "of new 0 []", options("other", "new"))
		topics, err := f.Inspector.Topics(ctx)
		require.NoError(t, err)
		require.Equal(t, []string{"other", "topic"}, topics)

		again, err := f.Client.ScheduleBatch(ctx, list[:7])
		require.NoError(t, err)
		for i, r := range again {
			require.False(t, r.Changed, i)
		}
		discard := []delayq.NewSchedule{daily("edited", delayq.DiscardEdits())}
		again, err = f.Client.ScheduleBatch(ctx, discard)
		require.NoError(t, err)
		require.True(t, again[0].Changed)
		require.Equal(t, "of edited 0 []", options("topic", "edited"))
		none, err := f.Client.ScheduleBatch(ctx, nil)
		require.NoError(t, err)
		require.Empty(t, none)
	})
}

// Many schedules travel in few calls, also those whose definitions are large.
func TestScheduleBatchTravelsInFewCalls(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx, calls := t.Context(), &counted{}
		client := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(calls))
		var list []delayq.NewSchedule
		for i := range 1200 {
			list = append(list, daily(fmt.Sprint(i)))
		}
		set := func() {
			calls.take()
			results, err := client.ScheduleBatch(ctx, list)
			require.NoError(t, err)
			require.Len(t, results, len(list))
		}
		set()
		require.Equal(t, map[string]int{"schedule_set": 8, "schedule_info": 1}, calls.take())
		set()
		require.Equal(t, map[string]int{"schedule_set": 8, "schedule_info": 1}, calls.take())
		for i := range list {
			list[i].Options = []delayq.ScheduleOption{delayq.MaxRuns(2)}
		}
		set()
		require.Equal(t, map[string]int{"schedule_set": 16, "schedule_info": 13}, calls.take())

		list = nil
		for i := range 20 {
			one := daily(fmt.Sprint("large ", i))
			one.Payload = make([]byte, 300<<10)
			list = append(list, one)
		}
		set()
		require.Equal(t, map[string]int{"schedule_set": 5, "schedule_info": 1}, calls.take())
		for i := range list {
			list[i].Payload = []byte("small")
		}
		set() // Redis reads no more than 1 MiB of what is there in a call
		require.Equal(t, 20, stored(t, f, "large "))
	})
}

// stored counts the schedules of a topic whose payload is small.
func stored(t *testing.T, f *queuetest.Fixture, prefix string) (n int) {
	list, err := f.Inspector.Schedules(t.Context(), "topic")
	require.NoError(t, err)
	for _, s := range list {
		if strings.HasPrefix(s.Name, prefix) {
			info, err := f.Inspector.Schedule(t.Context(), "topic", s.Name)
			require.NoError(t, err)
			require.Equal(t, "small", string(info.Payload))
			n++
		}
	}
	return n
}

// counted are the calls of scripts, by name.
type counted struct {
	mu sync.Mutex
	by map[string]int
}

func (c *counted) Script(e delayq.ScriptEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = make(map[string]int)
	}
	c.by[e.Name]++
}

// take returns the counts since the last take.
func (c *counted) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	by := c.by
	c.by = nil
	return by
}

// After a call that Redis does not answer, no other is sent, and the results say what is known.
func TestScheduleBatchOnASilentRedis(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		require.NoError(t, queuetest.LoadScripts(t.Context(), rdb))
		h := hand.New(t, rdb, redistest.Prefix(t), "topic")
		o := *rdb.(*redis.Client).Options()
		own := redis.NewClient(&o)
		defer func() { require.NoError(t, own.Close()) }()
		silent := &silence{from: 3} // after one that reads, and one that sets
		own.AddHook(silent)
		redistest.InRoles(t, own)
		client := delayq.NewClient(own, delayq.Prefix(h.Prefix()))
		var list []delayq.NewSchedule
		for i := range 1600 {
			list = append(list, daily(fmt.Sprint(i)))
		}
		list[1550].Topic = "other"
		results, err := client.ScheduleBatch(t.Context(), list)
		require.ErrorContains(t, err, "1450 of 1600 schedules failed")
		require.Equal(t, 3, silent.calls)
		for i, r := range results {
			switch {
			case i < 150:
				require.True(t, r.Changed)
			case i < 300:
				require.ErrorIs(t, r.Err, delayq.ErrUnknownOutcome)
			default:
				require.ErrorContains(t, r.Err, "not sent, because Redis did not answer an earlier call")
				require.NotErrorIs(t, r.Err, delayq.ErrUnknownOutcome)
			}
		}
		require.EqualValues(t, 300, must(rdb.HLen(t.Context(), h.Keys.Schedules).Result()))

		whole := delayq.NewClient(rdb, delayq.Prefix(h.Prefix()))
		results, err = whole.ScheduleBatch(t.Context(), list) // repeated
		require.NoError(t, err)
		for i, r := range results {
			require.Equal(t, i >= 300, r.Changed, i)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		results, err = whole.ScheduleBatch(ctx, list[:2])
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, results[1].Err, context.Canceled)
	})
}

// The audit has one act for a batch: what has changed, and how it was before.
func TestScheduleBatchIsRecorded(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := delayq.WithActor(t.Context(), "ann")
		require.NoError(t, f.Client.Schedule(t.Context(), "topic", "a", delayq.Cron("@daily", ""), []byte("of a")))
		for range 2 { // the second one changes nothing
			_, err := f.Client.ScheduleBatch(ctx, []delayq.NewSchedule{daily("a", delayq.MaxRuns(3)), daily("b")})
			require.NoError(t, err)
		}
		acts, err := f.Inspector.Audit(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, acts, 1)
		act := acts[0]
		require.Equal(t, []any{"ann", "schedule", "topic", "", int64(2)}, []any{act.Actor, act.Action, act.Topic, act.ID, act.Count})
		require.Contains(t, act.Filter, `"a" MaxRuns 3`)
		require.Contains(t, act.Filter, `"b" Spec "cron @daily"`)
		require.Contains(t, act.Was, `"a" MaxRuns none`)
		require.Contains(t, act.Was, `"b" none`)
	})
}

// Two clients that set the same schedules at the same time end with those of one of them.
func TestScheduleBatchBesideAnother(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		of := func(runs int) (list []delayq.NewSchedule) {
			for i := range 20 {
				list = append(list, daily(fmt.Sprint(i), delayq.MaxRuns(runs)))
			}
			return list
		}
		done := make(chan error)
		for runs := range 4 {
			go func() {
				_, err := f.Client.ScheduleBatch(t.Context(), of(runs+1))
				done <- err
			}()
		}
		for range 4 {
			require.NoError(t, <-done)
		}
		list, err := f.Inspector.Schedules(t.Context(), "topic")
		require.NoError(t, err)
		require.Len(t, list, 20)
		for _, s := range list {
			require.NotZero(t, s.MaxRuns)
		}
		found, err := f.Inspector.Check(t.Context(), "topic")
		require.NoError(t, err)
		require.Empty(t, found.Findings)
	})
}

// A typed topic makes the schedules of a batch.
func TestScheduleBatchOfATypedTopic(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		topic := delayq.NewTopic[string]("topic", delayq.JSON, delayq.Defaults(delayq.Retry(7)))
		one, err := topic.NewSchedule("s", delayq.Every(time.Hour), "x", delayq.MaxRuns(2))
		require.NoError(t, err)
		_, err = f.Client.ScheduleBatch(t.Context(), []delayq.NewSchedule{one})
		require.NoError(t, err)
		require.NoError(t, topic.Schedule(t.Context(), f.Client, "t", delayq.Every(time.Hour), "x", delayq.MaxRuns(2)))
		raw := must(f.RDB.HMGet(t.Context(), f.Key("schedules"), "s", "t").Result())
		require.Equal(t, raw[0].(string)[8:], raw[1].(string)[8:], "the nonces differ")

		_, err = delayq.NewTopic[chan int]("topic", delayq.JSON).NewSchedule("s", delayq.Every(time.Hour), make(chan int))
		require.ErrorIs(t, err, delayq.ErrInvalid)
	})
}

// The script refuses what was read before somebody else changed it, and leaves the rest.
func TestScheduleSetOfMany(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		require.NoError(t, f.Client.Schedule(t.Context(), "topic", "a", delayq.Every(rare), nil))
		raw := must(f.RDB.HGet(t.Context(), f.Key("schedules"), "a").Result())
		channel := script.ControlChannel(f.Prefix)
		set := func(others ...any) string {
			args := append([]any{"1", "a", raw, "0000000000000000", 0, 1000, channel, "topic"}, others...)
			r, err := script.Caller{RDB: f.RDB}.Exec(t.Context(), script.ScheduleSet, f.Hand.Keys, f.Hand.Keys.Receipt(fmt.Sprint(len(others))), 1, args...)
			require.NoError(t, err)
			return r.Text(2)
		}
		require.Equal(t, "same", set())
		require.Equal(t, "same new changed", set("b", "12345678"+raw[8:], "", 0, "c", raw, "0000000000000000", 0))
		require.Equal(t, "same new changed", set("b", "12345678"+raw[8:], "", 0, "c", raw, "0000000000000000", 0), "the receipt")
		require.EqualValues(t, 2, must(f.RDB.HLen(t.Context(), f.Key("schedules")).Result()))
	})
}
