package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/fire"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// A fireBench is a schedule "s" whose slot is due, and servers that fire only when the test says
// so.
type fireBench struct {
	*testing.T
	rdb    redis.UniversalClient
	prefix string
	client *delayq.Client
	keys   *script.Keys
	slot   int64
	id     string // of the slot's job
}

// rare is an interval so long that no slot comes while a test runs.
const rare = 100_000 * time.Hour

func eachFire(t *testing.T, test func(b *fireBench), opts ...delayq.ScheduleOption) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		b := &fireBench{T: t, rdb: rdb, prefix: redistest.Prefix(t)}
		b.client, b.keys = delayq.NewClient(rdb, delayq.Prefix(b.prefix)), script.NewKeys(b.prefix, "topic")
		require.NoError(t, b.client.Schedule(t.Context(), "topic", "s", delayq.Every(rare), []byte("payload"), opts...))
		now, err := rdb.Time(t.Context()).Result()
		require.NoError(t, err)
		b.slot = now.UnixMilli() / rare.Milliseconds() * rare.Milliseconds()
		b.id = fmt.Sprint("s@", b.slot)
		b.due()
		test(b)
	})
}

// inspector returns an inspector of the queue.
func (b *fireBench) inspector() *delayq.Inspector {
	return delayq.NewInspector(b.rdb, delayq.Prefix(b.prefix))
}

// definition returns the definition of a schedule, as it is stored.
func (b *fireBench) definition(name string) *record.Definition {
	b.Helper()
	d, err := record.DecodeDefinition(must(b.rdb.HGet(b.Context(), b.keys.Schedules, name).Result()))
	require.NoError(b, err)
	return d
}

// due makes the slot due, as if no time had passed since.
func (b *fireBench) due() {
	b.Helper()
	require.NoError(b, b.rdb.ZAdd(b.Context(), b.keys.Slots, redis.Z{Score: float64(b.slot), Member: "s"}).Err())
}

// server is one that has been prepared and does nothing by itself.
func (b *fireBench) server() *hand.Timer {
	b.Helper()
	return hand.NewTimer(b.rdb, b.keys, slog.New(slog.DiscardHandler))
}

// read is what a server has found out before it fires.
func (b *fireBench) read(t *hand.Timer) fire.Firing {
	b.Helper()
	r, err := t.Scripts.Exec(b.Context(), script.ScheduleDue, b.keys, "", 1, fire.PlaceSlots, 0, 10, fire.CallBytes)
	require.NoError(b, err)
	require.Equal(b, []string{"s"}, []string{r.List(3).Text(0)})
	f, err := t.Firer.Plan(fire.PlaceSlots, "s", r.List(4).Text(0), r.List(5).Text(0), r.List(6).Text(0), r.Now())
	require.NoError(b, err)
	return f
}

func (b *fireBench) fire(t *hand.Timer, f fire.Firing) {
	b.Helper()
	n, _, err := t.Firer.FireSome(b.Context(), []fire.Firing{f})
	require.NoError(b, err)
	require.Equal(b, 1, n)
}

// jobs are the IDs in the pool.
func (b *fireBench) jobs() []string {
	b.Helper()
	ids, err := b.rdb.HKeys(b.Context(), b.keys.Pool).Result()
	require.NoError(b, err)
	return ids
}

func (b *fireBench) state() *delayq.ScheduleInfo {
	b.Helper()
	info, err := b.inspector().Schedule(b.Context(), "topic", "s")
	require.NoError(b, err)
	return info
}

// Sent twice, or by many servers at the same time, a slot has one job. (E6)
func TestFireHappensOnce(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		const servers = 8
		var group sync.WaitGroup
		all := make([]*hand.Timer, servers)
		planned := make([]fire.Firing, servers)
		for i := range all {
			all[i] = b.server()
			planned[i] = b.read(all[i])
		}
		for i, ts := range all {
			group.Go(func() {
				for range 2 {
					if _, _, err := ts.Firer.FireSome(b.Context(), planned[i:i+1]); err != nil {
						b.Error(err)
					}
				}
			})
		}
		group.Wait()
		require.Equal(b, []string{b.id}, b.jobs())
		require.EqualValues(b, 1, b.state().Fired)
		require.Len(b, must(b.rdb.LRange(b.Context(), b.keys.Ready, 0, -1).Result()), 1)
		require.Equal(b, time.UnixMilli(b.slot+rare.Milliseconds()), b.state().NextSlot)
		require.Equal(b, "1", must(b.rdb.HGet(b.Context(), b.keys.Stats, "fired").Result()))
	})
}

// A schedule that is changed, paused or removed between the reading and the firing has no job of
// that slot, and nothing is left of one removed. (D16, N2)
func TestFireOfWhatHasChanged(t *testing.T) {
	for name, change := range map[string]func(b *fireBench) error{
		"changed": func(b *fireBench) error {
			return b.client.Schedule(b.Context(), "topic", "s", delayq.Every(rare), []byte("another payload"))
		},
		"changed and due": func(b *fireBench) error {
			defer b.due()
			return b.client.Schedule(b.Context(), "topic", "s", delayq.Every(rare), []byte("another payload"))
		},
		"paused": func(b *fireBench) error { return b.client.PauseSchedule(b.Context(), "topic", "s") },
		"resumed": func(b *fireBench) error {
			if err := b.client.PauseSchedule(b.Context(), "topic", "s"); err != nil {
				return err
			}
			return b.client.ResumeSchedule(b.Context(), "topic", "s")
		},
		"removed": func(b *fireBench) error { return b.client.Unschedule(b.Context(), "topic", "s") },
		"removed and made again": func(b *fireBench) error {
			if err := b.client.Unschedule(b.Context(), "topic", "s"); err != nil {
				return err
			}
			defer b.due()
			return b.client.Schedule(b.Context(), "topic", "s", delayq.Every(rare), []byte("payload"))
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			eachFire(t, func(b *fireBench) {
				ts := b.server()
				planned := b.read(ts)
				require.NoError(b, change(b))
				before := redistest.Dump(b, b.rdb, b.prefix)
				b.fire(ts, planned)
				require.Empty(b, b.jobs())
				require.Equal(b, before, redistest.Dump(b, b.rdb, b.prefix))
				if name == "removed" {
					require.Empty(b, before)
				}
			})
		})
	}
}

// A fire that got as far as the job and no further is made good by the next one: it is the same
// job. (E6)
func TestFireThatWasCutOff(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		ts := b.server()
		state := must(b.rdb.HGet(b.Context(), b.keys.Fired, "s").Result())
		b.fire(ts, b.read(ts))
		record := must(b.rdb.HGet(b.Context(), b.keys.Pool, b.id).Result())
		require.NoError(b, b.rdb.HSet(b.Context(), b.keys.Fired, "s", state).Err())
		b.due()
		b.fire(ts, b.read(ts))
		require.Equal(b, record, must(b.rdb.HGet(b.Context(), b.keys.Pool, b.id).Result()))
		require.Equal(b, []string{b.id}, b.jobs())
		require.EqualValues(b, 1, b.state().Fired)
		require.Zero(b, b.state().Skipped)
	})
}

// Somebody's own job that happens to have the ID of the slot is left alone, and the slot is
// skipped. (N4)
func TestFireFindsTheIDTaken(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		_, err := b.client.Enqueue(b.Context(), "topic", b.id, []byte("mine"), delayq.ProcessIn(time.Hour))
		require.NoError(b, err)
		ts := b.server()
		b.fire(ts, b.read(ts))
		info, err := b.client.Get(b.Context(), "topic", b.id)
		require.NoError(b, err)
		require.Equal(b, "mine", string(info.Payload))
		require.Empty(b, info.Schedule)
		require.EqualValues(b, 1, b.state().Skipped)
		require.Zero(b, b.state().Fired)
		require.False(b, b.state().NextSlot.IsZero())
	})
}

// All job options reach the job, with the slot as what ProcessIn counts from.
func TestFireMakesAJobOfTheOptions(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		ts := b.server()
		b.fire(ts, b.read(ts))
		info, err := b.client.Get(b.Context(), "topic", b.id)
		require.NoError(b, err)
		require.Equal(b, "payload", string(info.Payload))
		require.Equal(b, "s", info.Schedule)
		require.Equal(b, b.slot, info.Slot.UnixMilli())
		require.Equal(b, b.slot+(2*rare).Milliseconds(), info.Due.UnixMilli())
		require.Equal(b, 3, info.Retries)
		require.Equal(b, map[string]string{"k": "v", "l": "w"}, info.Headers)
		raw := must(b.rdb.HGet(b.Context(), b.keys.Pool, b.id).Result())
		require.EqualValues(b, 1|2|4, raw[record.NonceLen+1])
		rec, err := record.Decode(raw)
		require.NoError(b, err)
		_, err = b.client.Enqueue(b.Context(), "topic", "like it", nil, delayq.Retry(3), delayq.Timeout(time.Minute), delayq.ExpireIn(3*rare),
			delayq.Retention(time.Hour), delayq.Backoff(time.Second, time.Minute), delayq.Header("k", "v"), delayq.Header("l", "w"))
		require.NoError(b, err)
		like, err := record.Decode(must(b.rdb.HGet(b.Context(), b.keys.Pool, "like it").Result()))
		require.NoError(b, err)
		want := like.Options
		want.DueAt, want.Scheduled = rec.Options.DueAt, true
		require.Equal(b, want, rec.Options)
	}, delayq.ProcessIn(2*rare), delayq.Retry(3), delayq.Timeout(time.Minute), delayq.ExpireIn(3*rare), delayq.Retention(time.Hour), delayq.Backoff(time.Second, time.Minute),
		delayq.Header("k", "v"), delayq.Header("l", "w"))
}

// What cannot be read stops nothing: neither a state nor a definition nor a score, and not however
// many.
func TestFirePassesOverPoison(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		ctx := b.Context()
		for i := range 600 {
			name := fmt.Sprint("poison", i)
			bad := []string{"", "x", strings.Repeat("\xff", 30), "12345678\x01\xdc"}[i%4]
			require.NoError(b, b.rdb.HSet(ctx, b.keys.Schedules, name, bad).Err())
			require.NoError(b, b.rdb.HSet(ctx, b.keys.Fired, name, []string{"{", "", `{"nonce":1}`, "[]"}[i/4%4]).Err())
			place := []string{b.keys.Slots, b.keys.Waiting}[i/16%2]
			require.NoError(b, b.rdb.ZAdd(ctx, place, redis.Z{Score: float64(i), Member: name}).Err())
		}
		ts := b.server()
		p, err := ts.Promote(ctx, false)
		require.NoError(b, err)
		require.Equal(b, 601, p.Due+p.Waiting)
		require.True(b, ts.Firer.Fire(ctx, p.Due, p.Waiting))
		require.Equal(b, []string{b.id}, b.jobs())
		p, err = ts.Promote(ctx, false)
		require.NoError(b, err)
		require.False(b, ts.Firer.Fire(ctx, p.Due, p.Waiting))
		require.Equal(b, 600, ts.Firer.Idle+p.Waiting)
		list, err := b.inspector().Schedules(ctx, "topic")
		require.NoError(b, err)
		require.Len(b, slices.DeleteFunc(list, func(i *delayq.ScheduleInfo) bool { return i.Undecodable != nil }), 1)
	})
}

// A state that is not of the definition is left for a check to mend, and no loop goes round and
// round meanwhile.
func TestFireLeavesAStateOfAnotherDefinition(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		ctx := b.Context()
		text, err := b.rdb.HGet(ctx, b.keys.Fired, "s").Result()
		require.NoError(b, err)
		var state map[string]any
		require.NoError(b, json.Unmarshal([]byte(text), &state))
		state["nonce"] = "0123456789abcdef"
		other, err := json.Marshal(state)
		require.NoError(b, err)
		require.NoError(b, b.rdb.HSet(ctx, b.keys.Fired, "s", other).Err())
		ts := b.server()
		p, err := ts.Promote(ctx, false)
		require.NoError(b, err)
		require.Equal(b, 1, p.Due)
		require.False(b, ts.Firer.Fire(ctx, p.Due, p.Waiting), "nothing has happened")
		require.Contains(b, ts.Firer.Bad["s"], "another definition")
		require.Empty(b, b.jobs())

		require.NoError(b, b.rdb.HSet(ctx, b.keys.Fired, "s", text).Err())
		ts.Firer.Last = time.Time{} // a tick later
		require.True(b, ts.Firer.Fire(ctx, p.Due, p.Waiting))
		require.Equal(b, []string{b.id}, b.jobs())
	})
}

// A slot that somebody has written with a fraction is fired like any other, and a check finds it
// before it is due.
func TestFireOfASlotWithAFraction(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		ctx := b.Context()
		require.NoError(b, b.rdb.ZAdd(ctx, b.keys.Slots, redis.Z{Score: float64(b.slot) + 0.5, Member: "s"}).Err())
		report, err := b.inspector().Check(ctx, "topic")
		require.NoError(b, err)
		require.Equal(b, map[delayq.FindingKind]int{delayq.FindingBadTime: 1}, report.Found)
		ts := b.server()
		for range 3 {
			p, err := ts.Promote(ctx, false)
			require.NoError(b, err)
			if !ts.Firer.Fire(ctx, p.Due, p.Waiting) {
				break
			}
		}
		require.Equal(b, []string{b.id}, b.jobs())
		p, err := ts.Promote(ctx, false)
		require.NoError(b, err)
		require.Zero(b, p.Due+p.Waiting)
	})
}

// A run whose lease ran out is noted by promote, of jobs of schedules only.
func TestScheduleHistoryOfALostLease(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		ts := b.server()
		b.fire(ts, b.read(ts))
		_, err := b.client.Enqueue(b.Context(), "topic", "s@17", nil) // no job of the schedule, whatever its ID
		require.NoError(b, err)
		h := hand.New(b, b.rdb, b.prefix, "topic")
		require.Len(b, h.Take(2, 0), 2)
		_, reclaimed := h.Promote()
		require.Equal(b, 2, reclaimed)
		runs, err := b.inspector().Runs(b.Context(), "topic", "s", 10)
		require.NoError(b, err)
		require.Len(b, runs, 1)
		require.Equal(b, b.id, runs[0].JobID)
		require.Equal(b, delayq.OutcomeLeaseLost, runs[0].Outcome)
		require.Equal(b, 1, runs[0].Attempt)
		require.EqualValues(b, 1, b.state().Failures)
	})
}

// Whether lapsed jobs are those of a schedule is looked up in the first record and no more than 1
// MiB in all; beyond that their IDs are believed. (G4)
func TestScheduleHistoryReadsFewBytes(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		ctx := b.Context()
		const mine = 6 // jobs of a user, whose IDs look like those of the schedule
		raw := "12345678\x01\x00" + strings.Repeat("x", 1<<18-10)
		for i := range mine {
			id := fmt.Sprint("s@", i)
			require.NoError(b, b.rdb.HSet(ctx, b.keys.Pool, id, raw).Err())
			require.NoError(b, b.rdb.ZAdd(ctx, b.keys.Leases, redis.Z{Score: float64(i), Member: id}).Err())
		}
		_, reclaimed := hand.New(b, b.rdb, b.prefix, "topic").Promote()
		require.Equal(b, mine, reclaimed)
		require.EqualValues(b, mine-4, b.state().Attempts)

		// The first one is read whatever its size.
		require.NoError(b, b.rdb.HSet(ctx, b.keys.Pool, "s@7", strings.Repeat(raw, 5)).Err())
		require.Equal(b, delayq.StateReady, must(b.client.Dequeue(ctx, "topic", "s@7")))
		require.EqualValues(b, mine-4, b.state().Attempts)
	})
}

type scriptCalls []string

func (c *scriptCalls) Script(e delayq.ScriptEvent) { *c = append(*c, e.Name) }

// One call reads no more than some MiB of definitions, however many it is asked for, and a list has
// all of them none the less. (G4)
func TestDescribeReadsFewBytes(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		var calls scriptCalls
		client := delayq.NewClient(b.rdb, delayq.Prefix(b.prefix), delayq.Hooks(&calls))
		payload := make([]byte, 700<<10)
		for i := range 5 {
			require.NoError(b, client.Schedule(b.Context(), "topic", fmt.Sprint("large", i), delayq.Every(rare), payload))
		}
		calls = nil
		list, err := delayq.NewInspector(b.rdb, delayq.Prefix(b.prefix), delayq.Hooks(&calls)).Schedules(b.Context(), "topic")
		require.NoError(b, err)
		require.Len(b, list, 6)
		require.Len(b, calls, 5, "one in each, and the small one with the last")
		for _, info := range list[:5] {
			require.NoError(b, info.Undecodable)
			require.Equal(b, len(payload), info.PayloadSize)
		}
		info, err := delayq.NewInspector(b.rdb, delayq.Prefix(b.prefix)).Schedule(b.Context(), "topic", "large4")
		require.NoError(b, err)
		require.True(b, bytes.Equal(payload, info.Payload), "only one schedule alone comes with its payload")
		info.Payload = nil
		of, listed := reflect.ValueOf(info).Elem(), reflect.ValueOf(list[4]).Elem()
		for i := range of.NumField() {
			if field := of.Type().Field(i); field.IsExported() {
				require.Equal(b, listed.Field(i).Interface(), of.Field(i).Interface(), field.Name)
			}
		}
	})
}

// A call of a client that is sent again is carried out once, and answers as it did the first time,
// whatever has happened meanwhile.
func TestScheduleCallsSentTwice(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		ctx, k := b.Context(), b.keys
		h := hand.New(b, b.rdb, b.prefix, "topic")
		receipt, channel := k.Receipt(h.Series.ID), script.ControlChannel(b.prefix)
		twice := func(s *script.Script, keys []any, meanwhile func(), args ...any) string {
			b.Helper()
			first, err := h.Try(s, keys, append([]any{h.Series.Next()}, args...)...)
			require.NoError(b, err)
			if meanwhile != nil {
				meanwhile()
			}
			again, err := h.Last()
			require.NoError(b, err)
			require.Equal(b, first[2:], again[2:])
			return first.Text(2)
		}
		require.NoError(b, b.client.Schedule(ctx, "topic", "like it", delayq.Every(rare), nil))
		d := b.definition("like it")
		require.NoError(b, b.client.Unschedule(ctx, "topic", "like it"))
		nonce := func() string {
			raw := must(b.rdb.HGet(ctx, k.Schedules, "s").Result())
			return must(record.DecodeDefinition(raw)).Nonce
		}
		d.Job.Scheduled = true
		head, tail, err := record.Encode(record.Nonce{1}, &d.Job, nil)
		require.NoError(b, err)

		id := twice(script.ScheduleTrigger, k.Of(script.ScheduleTrigger, receipt), nil,
			"s", nonce(), head, tail, 0, 1000, channel, "topic")
		require.Equal(b, []string{id}, b.jobs())
		require.Equal(b, "changed", twice(script.ScheduleTrigger, k.Of(script.ScheduleTrigger, receipt), nil,
			"s", "0000000000000000", head, tail, 0, 1000, channel, "topic"))

		suspend := k.Of(script.SchedulePause, receipt)
		resume := func() { require.NoError(b, b.client.ResumeSchedule(ctx, "topic", "s")) }
		require.Equal(b, "paused", twice(script.SchedulePause, suspend, resume, "s", "pause", "", "", 1000, channel, "topic"))
		require.Zero(b, b.state().PausedSince, "a pause that comes late does not undo the resume")

		keys := k.Of(script.ScheduleSet, receipt)
		raw, err := d.Encode()
		require.NoError(b, err)
		remove := func() { require.NoError(b, b.client.Unschedule(ctx, "topic", "s")) }
		require.Equal(b, "changed", twice(script.ScheduleSet, keys, nil, "s", raw, "0000000000000000", b.slot, 1000, channel, "topic"))
		require.Equal(b, "replaced", twice(script.ScheduleSet, keys, remove, "s", raw, nonce(), b.slot, 1000, channel, "topic"))
		_, err = b.inspector().Schedule(ctx, "topic", "s")
		require.ErrorIs(b, err, delayq.ErrNotFound, "a schedule that was removed meanwhile is not made again")

		require.Equal(b, "changed", twice(script.ScheduleSet, keys, nil, "s", raw, "0000000000000000", b.slot, 1000, channel, "topic"))
		require.Equal(b, "new", twice(script.ScheduleSet, keys, nil, "s", raw, "", b.slot, 1000, channel, "topic"))
		require.Equal(b, "gone", twice(script.ScheduleRemove, keys, nil, "s"))
		require.Equal(b, "none", twice(script.ScheduleRemove, keys, nil, "s"))
	})
}

// A Redis that is full refuses to fire, as it refuses to enqueue, and the slot is fired when there
// is room again. Nothing is half done.
func TestFireOnAFullRedis(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	rdb := redistest.Start(t).Client(t)
	b := &fireBench{T: t, rdb: rdb, prefix: redistest.Prefix(t)}
	b.client, b.keys = delayq.NewClient(rdb, delayq.Prefix(b.prefix)), script.NewKeys(b.prefix, "topic")
	require.NoError(t, b.client.Schedule(t.Context(), "topic", "s", delayq.Every(rare), nil))
	b.slot = time.Now().UnixMilli() / rare.Milliseconds() * rare.Milliseconds()
	b.id = fmt.Sprint("s@", b.slot)
	b.due()
	ts := b.server()
	f := b.read(ts)
	before := redistest.Dump(t, rdb, b.prefix)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, _, err := ts.Firer.FireSome(t.Context(), []fire.Firing{f})
	require.ErrorContains(t, err, "OOM")
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	require.Equal(t, before, redistest.Dump(t, rdb, b.prefix))
	b.fire(ts, f)
	require.Equal(t, []string{b.id}, b.jobs())
}

// A key of a wrong type stops the firing before anything is written.
func TestFireMeetsAKeyOfAWrongType(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		ts := b.server()
		f := b.read(ts)
		for _, key := range []string{b.keys.Pool, b.keys.Bucket, b.keys.Ready, b.keys.Leases, b.keys.Dead, b.keys.Waiting} {
			require.NoError(b, b.rdb.Set(b.Context(), key, "wrong", 0).Err())
			before := redistest.Dump(b, b.rdb, b.prefix)
			_, _, err := ts.Firer.FireSome(b.Context(), []fire.Firing{f})
			require.ErrorContains(b, err, "WRONGTYPE", key)
			require.Equal(b, before, redistest.Dump(b, b.rdb, b.prefix))
			require.NoError(b, b.rdb.Del(b.Context(), key).Err())
		}
		b.fire(ts, f)
		require.Equal(b, []string{b.id}, b.jobs())
	})
}

// A stored rule that is refused today fires, and the log names it once. One that only a newer
// release understands is logged, stays as it is, and does not keep others from firing.
func TestStoredRulesFire(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		ctx := b.Context()
		define := func(name, rule string) {
			require.NoError(b, b.client.Schedule(ctx, "topic", name, delayq.Every(rare), nil))
			old, d := must(b.rdb.HGet(ctx, b.keys.Schedules, name).Result()), b.definition(name)
			d.Spec = record.Spec{Kind: record.Cron, Text: rule}
			raw := must(d.Encode())
			require.NoError(b, b.rdb.HSet(ctx, b.keys.Schedules, name, old[:8]+raw[8:]).Err()) // the same nonce
			require.NoError(b, b.rdb.ZAdd(ctx, b.keys.Slots, redis.Z{Score: float64(b.slot), Member: name}).Err())
		}
		define("doubtful", "*/90 * * * *")
		define("newer", "0 0 L * *")
		var log bytes.Buffer
		ts := hand.NewTimer(b.rdb, b.keys, slog.New(slog.NewTextHandler(&log, nil)))
		for range 3 {
			b.due()
			require.NoError(b, b.rdb.ZAdd(ctx, b.keys.Slots, redis.Z{Score: float64(b.slot), Member: "doubtful"}).Err())
			for {
				p, err := ts.Promote(ctx, false)
				require.NoError(b, err)
				if !ts.Firer.Fire(ctx, p.Due, p.Waiting) {
					break
				}
			}
		}
		require.Equal(b, 1, strings.Count(log.String(), `msg="rule no longer accepted" schedule=doubtful`), log.String())
		require.Equal(b, 1, strings.Count(log.String(), `msg="schedule failed" schedule=newer`), log.String())
		jobs := b.jobs()
		require.Contains(b, jobs, b.id)
		require.True(b, slices.ContainsFunc(jobs, func(id string) bool { return strings.HasPrefix(id, "doubtful@") }))
		require.False(b, slices.ContainsFunc(jobs, func(id string) bool { return strings.HasPrefix(id, "newer@") }))
		info := must(b.inspector().Schedule(ctx, "topic", "newer"))
		require.Equal(b, "cron 0 0 L * *", info.Spec.String())
		require.ErrorContains(b, info.RuleError, "cannot fire")
		require.Equal(b, b.slot, info.NextSlot.UnixMilli(), "its slot waits for a newer release")
	})
}
