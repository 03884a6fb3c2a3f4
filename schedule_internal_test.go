package delayq

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/schedule"
)

// compiled returns the rhythm of a schedule that is nothing but a spec.
func compiled(spec Spec) (schedule.Rhythm, error) {
	d := newDefinition(spec, nil, nil)
	err := d.compile()
	return d.next, err
}

func TestSpecsOfIntervals(t *testing.T) {
	t.Parallel()
	next, err := compiled(Every(time.Nanosecond * 1_000_001)) // rounded up
	require.NoError(t, err)
	require.EqualValues(t, 12, must(next(10)))
	next, err = compiled(Cron(" @every  1h", ""))
	require.NoError(t, err)
	at := time.Date(2026, 5, 13, 12, 34, 56, 0, time.UTC).UnixMilli()
	require.Equal(t, time.Date(2026, 5, 13, 13, 0, 0, 0, time.UTC), msTime(must(next(at))).UTC())
	require.Equal(t, Every(time.Hour), Cron("@every 1h", ""))
	for spec, want := range map[Spec]string{
		Every(10 * time.Second): "every 10s", Cron("0  9 * * 1-5", "Europe/Berlin"): "cron 0 9 * * 1-5 Europe/Berlin",
		OnCalendar("bank-days"): "calendar bank-days", {}: "none",
	} {
		require.Equal(t, want, spec.String())
	}
}

// The error says which field, where it is, and what is wrong with it.
func TestBadCronSaysWhere(t *testing.T) {
	t.Parallel()
	for rule, parts := range map[string][]string{
		"":                         {"want 5 or 6 fields, got 0"},
		"* * * *":                  {"got 4"},
		"* * * * * * *":            {"got 7"},
		"60 * * * *":               {`Cron("60 * * * *"): minute "60" at byte 0`, "from 0 to 59"},
		"  0  0   32 * *":          {`day of month "32" at byte 9`, "31"},
		"61 0 0 1 1 1":             {`second "61" at byte 0`},
		"*/90 25 0 foo 8":          {`minute "*/90" at byte 0`, "@every 90m", `hour "25" at byte 5`, `day of month "0" at byte 8`, `month "foo" at byte 10`, `day of week "8" at byte 14`},
		"0 0 30 2 *":               {`day of month "30" at byte 4`, "no future slots"},
		"@fortnightly":             {"@fortnightly"},
		"@every":                   {"@every"},
		"@every soon":              {`invalid duration "soon" at byte 7`, "90m"},
		" @every\te 5":             {`invalid duration "e 5" at byte 8`},
		"@every 10us":              {"at least 1ms"},
		"TZ=UTC":                   {"zone"},
		"CRON_TZ=UTC 0 0 * * *":    {"zone"},
		"0 0 * * \xff":             {"UTF-8"},
		string(make([]byte, 2000)): {"2000 bytes"},
	} {
		_, err := compiled(Cron(rule, "UTC"))
		require.Error(t, err, rule)
		for _, part := range parts {
			require.ErrorContains(t, err, part)
		}
	}
	for _, zone := range []string{"Europe/Atlantis", "Local", "../etc/passwd"} {
		_, err := compiled(Cron("* * * * *", zone))
		require.ErrorContains(t, err, zone)
		_, err = compiled(Cron("0 25 * * *", zone))
		require.ErrorContains(t, err, "hour")
		require.ErrorContains(t, err, zone)
	}
}

// Whatever is written into a rule, it is an error or has slots that go up.
func FuzzSpec(f *testing.F) {
	for _, rule := range []string{"* * * * *", "TZ=", "@every 1s", ", , , , ,", "*/9 1-5/2 ? jan-mar sun,mon", "0 0 30 2 *"} {
		f.Add(rule, "Europe/Berlin")
	}
	f.Fuzz(func(t *testing.T, rule, zone string) {
		next, err := compiled(Cron(rule, zone))
		if err != nil {
			return
		}
		for at, i := int64(1_700_000_000_000), 0; i < 3; i++ {
			slot, err := next(at)
			require.NoError(t, err)
			if slot == 0 {
				return
			}
			require.Greater(t, slot, at)
			at = slot
		}
	})
}

// The start of a program leaves what an operator has changed, and changes the rest.
func TestProgramStartKeepsAnEdit(t *testing.T) {
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		ctx, c := t.Context(), clientOf(h)
		start := func(payload string, opts ...ScheduleOption) *ScheduleInfo {
			require.NoError(t, c.Schedule(ctx, "topic", "s", Cron("0 3 * * *", ""), []byte(payload), opts...))
			info, err := inspectorOf(c).Schedule(ctx, "topic", "s")
			require.NoError(t, err)
			return info
		}
		info := start("one", Retry(3))
		require.Empty(t, info.Edited)

		before := time.Now().Add(-time.Minute)
		require.NoError(t, c.EditSchedule(ctx, "topic", "s", func(def *ScheduleDefinition) error {
			def.EditedBy = "ops:anna"
			require.Equal(t, Cron("0 3 * * *", ""), def.Spec)
			require.Equal(t, "one", string(def.Payload))
			def.Spec = Cron("0 5 * * *", "")
			return nil
		}))
		for _, payload := range []string{"one", "two", "one", "one"} {
			info = start(payload, Retry(3))
			require.Equal(t, Cron("0 5 * * *", ""), info.Spec)
			require.Equal(t, 5, info.NextSlot.UTC().Hour())
			require.Equal(t, payload, string(info.Payload))
			require.Equal(t, []string{"Spec"}, info.Edited)
			require.Equal(t, "ops:anna", info.EditedBy)
			require.True(t, info.EditedAt.After(before))
			require.Equal(t, 3, info.Retries)
		}
		list, err := inspectorOf(c).Schedules(ctx, "topic")
		require.NoError(t, err)
		require.Equal(t, []string{"Spec"}, list[0].Edited)

		// A second edit adds to the first one.
		require.NoError(t, c.EditSchedule(ctx, "topic", "s", func(def *ScheduleDefinition) error {
			def.EditedBy = "ops:ben"
			def.Options = append(def.Options, Retry(9), Header("k", "v"))
			return nil
		}))
		info = start("three", Retry(4), Jitter(time.Second))
		require.Equal(t, []string{"Headers", "Retry", "Spec"}, info.Edited)
		require.Equal(t, "ops:ben", info.EditedBy)
		require.Equal(t, []any{9, "v", time.Second, "three"}, []any{info.Retries, info.Headers["k"], info.Jitter, string(info.Payload)})

		info = start("three", Retry(4), DiscardEdits())
		require.Empty(t, info.Edited)
		require.Empty(t, info.EditedBy)
		require.True(t, info.EditedAt.IsZero())
		require.Equal(t, Cron("0 3 * * *", ""), info.Spec)
		require.Equal(t, 4, info.Retries)
		require.Empty(t, info.Headers)
		info = start("four", Retry(4))
		require.Equal(t, "four", string(info.Payload))
	})
}

// Two versions of a program that are restarted by turns do not change a schedule to and fro.
func TestIfAbsentChangesNothing(t *testing.T) {
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		ctx, c := t.Context(), clientOf(h)
		require.NoError(t, c.Schedule(ctx, "topic", "s", Every(time.Hour), []byte("first"), IfAbsent()))
		first := redistest.Dump(t, h.RDB, h.Prefix())
		for i := range 4 {
			require.NoError(t, c.Schedule(ctx, "topic", "s", Every(time.Duration(1+i)*time.Minute), nil, IfAbsent(), Retry(i)))
		}
		require.Equal(t, first, redistest.Dump(t, h.RDB, h.Prefix()))
		// Nor what this release cannot read.
		require.NoError(t, h.RDB.HSet(ctx, h.Keys.Schedules, "s", "12345678\x63of a newer release").Err())
		require.NoError(t, c.Schedule(ctx, "topic", "s", Every(time.Hour), nil, IfAbsent()))
		require.Equal(t, "12345678\x63of a newer release", h.RDB.HGet(ctx, h.Keys.Schedules, "s").Val())
		require.ErrorContains(t, c.EditSchedule(ctx, "topic", "s", func(*ScheduleDefinition) error { return nil }), "format version 99")
		require.NoError(t, c.Unschedule(ctx, "topic", "s"))
		require.NoError(t, c.Schedule(ctx, "topic", "s", Every(time.Minute), nil, IfAbsent()))
		info, err := inspectorOf(c).Schedule(ctx, "topic", "s")
		require.NoError(t, err)
		require.Equal(t, Every(time.Minute), info.Spec)
		for range 2 { // as each role that may
			runs, err := inspectorOf(c).Runs(ctx, "topic", "s", 10)
			require.NoError(t, err)
			require.Empty(t, runs)
		}
	})
}

// Edits at the same time, and starts of the program between them, lose nothing of each other.
func TestEditsAtTheSameTime(t *testing.T) {
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		ctx, c := t.Context(), clientOf(h)
		program := func(n int) error {
			return c.Schedule(ctx, "topic", "s", Every(time.Hour), []byte(fmt.Sprint(n)), Retry(n))
		}
		require.NoError(t, program(0))
		edits := []ScheduleOption{
			Jitter(time.Second), MaxRuns(3), Timeout(time.Minute), Retention(time.Hour), ExpireIn(time.Hour), OverlapQueueOne, MissedCatchUp(4),
			ProcessIn(time.Minute), Backoff(time.Minute, time.Hour), Header("k", "v"),
		}
		var all sync.WaitGroup
		errs := make(chan error, 100)
		for i, opt := range edits {
			all.Go(func() {
				errs <- c.EditSchedule(ctx, "topic", "s", func(def *ScheduleDefinition) error {
					def.EditedBy = fmt.Sprint(i)
					def.Options = append(def.Options, opt)
					return nil
				})
			})
			all.Go(func() { errs <- program(i) })
		}
		all.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		want := newDefinition(Every(time.Hour), []byte("77"), append(edits, Retry(77)))
		require.NoError(t, program(77))
		info, err := inspectorOf(c).Schedule(ctx, "topic", "s")
		require.NoError(t, err)
		require.Empty(t, differences(info.definition, &want.Definition))
		require.Len(t, info.Edited, len(edits))
	})
}

func TestEditScheduleRefuses(t *testing.T) {
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		ctx, c := t.Context(), clientOf(h)
		nothing := func(*ScheduleDefinition) error { return nil }
		require.ErrorIs(t, c.EditSchedule(ctx, "topic", "s", nothing), ErrNotFound)
		require.NoError(t, c.Schedule(ctx, "topic", "s", Every(time.Hour), make([]byte, 100), ExpireIn(time.Hour)))
		before := redistest.Dump(t, h.RDB, h.Prefix())
		mine := errors.New("mine")
		require.ErrorIs(t, c.EditSchedule(ctx, "topic", "s", func(*ScheduleDefinition) error { return mine }), mine)
		for say, err := range map[string]error{
			"edit is nil":             c.EditSchedule(ctx, "topic", "s", nil),
			"EditedBy of 1025 bytes":  c.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error { d.EditedBy = strings.Repeat("x", 1025); return nil }),
			"nil context":             c.EditSchedule(nil, "topic", "s", nothing), //lint:ignore SA1012 that is the test
			"empty topic":             c.EditSchedule(ctx, "", "s", nothing),
			"empty schedule name":     c.EditSchedule(ctx, "topic", "", nothing),
			"options of Schedule":     c.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error { d.Options = append(d.Options, DiscardEdits()); return nil }),
			"use Every, Cron":         c.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error { d.Spec = Spec{}; return nil }),
			"payload of 1048577":      c.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error { d.Payload = make([]byte, 1<<20+1); return nil }),
			"some jobs would expire":  c.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error { d.Options = append(d.Options, Jitter(time.Hour)); return nil }),
			"has no future slots":     c.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error { d.Options = append(d.Options, EndAt(time.UnixMilli(1))); return nil }),
			"Retry(-7): must be from": c.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error { d.Options = append(d.Options, Retry(-7)); return nil }),
		} {
			require.ErrorIs(t, err, ErrInvalid, say)
			require.ErrorContains(t, err, say)
		}
		require.NoError(t, c.EditSchedule(ctx, "topic", "s", nothing))
		require.NoError(t, c.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error { d.EditedBy = "me"; d.Payload[0] = 0; return nil }))
		require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()), "an edit that changes nothing writes nothing")

		// What the program gives need not go together with an edit.
		require.NoError(t, c.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error {
			d.EditedBy = "ops"
			d.Options = append(d.Options, ExpireIn(time.Minute))
			return nil
		}))
		err := c.Schedule(ctx, "topic", "s", Every(time.Hour), nil, ExpireIn(time.Hour), Jitter(2*time.Minute))
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, `schedule "s": with Expire as edited by "ops": `)
		require.NoError(t, c.Schedule(ctx, "topic", "s", Every(time.Hour), nil, ExpireIn(time.Hour), Jitter(2*time.Minute), DiscardEdits()))

		// A tool with a lower MaxPayload can edit all but the payload.
		small := NewClient(h.RDB, Prefix(h.Prefix()), MaxPayload(10))
		require.NoError(t, c.Schedule(ctx, "topic", "s", Every(time.Hour), make([]byte, 100)))
		require.NoError(t, small.EditSchedule(ctx, "topic", "s", func(d *ScheduleDefinition) error { d.Spec = Every(time.Minute); return nil }))
	})
}

// given are the options of a schedule with another value than the default, by the name of the part
// they are of.
var given = map[string]ScheduleOption{
	"StartAt": StartAt(time.UnixMilli(maxDueMS - 1e9)), "EndAt": EndAt(time.UnixMilli(maxDueMS - 1e3)), "MaxRuns": MaxRuns(7),
	"Jitter": Jitter(time.Minute), "OnOverlap": OverlapQueueOne, "OnMissed": MissedCatchUp(3), "ProcessIn": ProcessIn(time.Minute), "Retry": Retry(0),
	"Backoff": Backoff(3*time.Second, time.Hour), "Timeout": Timeout(time.Second), "Expire": ExpireIn(time.Hour), "Retention": Retention(time.Hour),
	"Headers": Header("k", "v"), "Key": Key("k"),
}

// A part is edited alone, and a schedule of any options can be copied.
func TestEditAndCopyOfEachPart(t *testing.T) {
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		ctx, c := t.Context(), clientOf(h)
		read := func(name string) *ScheduleInfo {
			info, err := inspectorOf(c).Schedule(ctx, "topic", name)
			require.NoError(t, err)
			return info
		}
		copied := func(name string) {
			info := read(name)
			require.NoError(t, c.Schedule(ctx, "topic", "copy", info.Spec, info.Payload, append(info.Options(), DiscardEdits())...))
			twin := read("copy")
			require.Empty(t, differences(twin.definition, info.definition), name)
			require.Equal(t, []any{info.Spec, info.Payload, info.Headers}, []any{twin.Spec, twin.Payload, twin.Headers}, name)
		}
		var all []ScheduleOption
		for _, part := range parts {
			require.NoError(t, c.Schedule(ctx, "topic", part.name, Every(time.Hour), []byte("payload")))
			before := read(part.name)
			require.NoError(t, c.EditSchedule(ctx, "topic", part.name, func(def *ScheduleDefinition) error {
				def.EditedBy = "me"
				switch part.name {
				case "Spec":
					def.Spec = Cron("0 9 * * *", "Europe/Berlin")
				case "Payload":
					def.Payload = nil
				default:
					require.Contains(t, given, part.name)
					def.Options = append(def.Options, given[part.name])
					all = append(all, given[part.name])
				}
				return nil
			}))
			after := read(part.name)
			require.Equal(t, []string{part.name}, differences(after.definition, before.definition))
			require.Equal(t, []string{part.name}, after.Edited)
			copied(part.name)
		}
		require.NoError(t, c.Schedule(ctx, "topic", "all", Every(time.Hour), []byte("payload"), all...))
		copied("all")
		require.NoError(t, c.Schedule(ctx, "topic", "all", Every(time.Hour), nil, ExpireAt(time.UnixMilli(maxDueMS))))
		copied("all")

		list, err := inspectorOf(c).Schedules(ctx, "topic")
		require.NoError(t, err)
		for _, info := range list {
			err := c.Schedule(ctx, "topic", "twin", info.Spec, info.Payload, info.Options()...)
			require.Equal(t, info.PayloadSize > 0, errors.Is(err, ErrInvalid) && strings.Contains(err.Error(), "the payload was not read"), info.Name)
		}
		require.NoError(t, h.RDB.HSet(ctx, h.Keys.Schedules, "all", "garbage").Err())
		err = c.Schedule(ctx, "topic", "twin", Every(time.Hour), nil, read("all").Options()...)
		require.ErrorContains(t, err, "could not be read")
	})
}

// Whatever a definition has is a part of it, or needs none.
func TestPartsAreAllOfADefinition(t *testing.T) {
	t.Parallel()
	covered := map[uintptr]bool{}
	d := new(definition)
	for _, part := range parts {
		for _, field := range part.fields(&d.Definition) {
			covered[reflect.ValueOf(field).Pointer()] = true
		}
	}
	walk := func(v reflect.Value, but ...string) {
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; !slices.Contains(but, name) {
				require.True(t, covered[v.Field(i).Addr().Pointer()], "%s is of no part", name)
			}
		}
	}
	walk(reflect.ValueOf(d).Elem(), "Definition", "specErr", "replace", "errs", "onto", "next", "walked")
	walk(reflect.ValueOf(&d.Definition).Elem(), "Job", "Edit", "Nonce")
	walk(reflect.ValueOf(&d.Job).Elem(), "DueAt", "Scheduled", "filled")
}

// Of a job that is moved to another topic nothing is lost that its options gave.
func TestMoveLosesNothing(t *testing.T) {
	options := map[string][]JobOption{
		"none": nil, "ProcessIn": {ProcessIn(time.Hour)}, "ProcessAt": {ProcessAt(time.UnixMilli(maxDueMS))}, "Retry": {Retry(0)},
		"Backoff": {Backoff(3*time.Second, time.Hour)}, "Timeout": {Timeout(90 * time.Second)}, "ExpireAt": {ExpireAt(time.UnixMilli(maxDueMS - 1))},
		"ExpireIn": {ExpireIn(time.Hour)}, "Retention": {Retention(time.Minute)}, "Header": {Header("", "a"), Header("b", "\xff")},
		"all": {
			ProcessIn(time.Hour), Retry(7), Backoff(3*time.Second, time.Hour), Timeout(90 * time.Second), ExpireIn(2 * time.Hour), Retention(time.Minute),
			Header("k", "v"),
		},
	}
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		ctx, c := t.Context(), clientOf(h)
		for name, opts := range options {
			_, err := c.Enqueue(ctx, "topic", name, []byte("payload of "+name), opts...)
			require.NoError(t, err)
			from, err := c.Get(ctx, "topic", name)
			require.NoError(t, err)
			_, err = c.Enqueue(ctx, "elsewhere", from.ID, from.Payload, from.Options()...)
			require.NoError(t, err)
			to, err := c.Get(ctx, "elsewhere", name)
			require.NoError(t, err)
			if from.State == StateReady {
				require.Equal(t, StateReady, to.State)
				to.Due = from.Due // both are due at once
			}
			require.Equal(t, told(from), told(to), name)

			page, err := inspectorOf(c).Jobs(ctx, Query{Topic: "topic", State: from.State, Limit: 1})
			require.NoError(t, err)
			_, err = c.Enqueue(ctx, "nowhere", name, nil, page.Jobs[0].Options()...)
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, "the payload was not read")
		}
		// What has been moved since its enqueueing is due when it is due now.
		require.NoError(t, c.Reschedule(ctx, "topic", "all", ProcessIn(90*time.Minute)))
		from, err := c.Get(ctx, "topic", "all")
		require.NoError(t, err)
		job, err := c.Enqueue(ctx, "later", "all", from.Payload, from.Options()...)
		require.NoError(t, err)
		require.Equal(t, from.Due, job.Due)

		require.NoError(t, h.RDB.HSet(ctx, h.Keys.Pool, "none", "garbage").Err())
		from, err = c.Get(ctx, "topic", "none")
		require.NoError(t, err)
		_, err = c.Enqueue(ctx, "later", "none", nil, from.Options()...)
		require.ErrorContains(t, err, "could not be read")
	})
}

// told is what the options of a job gave, as Get tells it.
func told(info *JobInfo) map[string]any {
	return map[string]any{
		"payload": string(info.Payload), "headers": info.Headers, "retries": info.Retries, "due": info.Due, "timeout": info.Timeout,
		"expires": info.ExpireAt, "retention": info.Retention, "backoff": []time.Duration{info.BackoffFirst, info.BackoffLimit},
	}
}

// Rules that an earlier release accepted and Cron refuses today, as that release stored them, and
// what their errors say.
var storedRules = map[string]string{
	"*/90 * * * *": "@every 90m", "5/15 * * * *": "write 5-59/15", "0 0 ? * 1": "write *", "0,,30 * * * *": "empty entry", "+5 * * * *": "plus sign",
}

// A stored rule that is refused today is kept and has slots, whatever is done with its schedule. A
// new one is refused wherever it comes from, and changes nothing.
func TestStoredRulesAreKept(t *testing.T) {
	hand.Each(t, func(t *testing.T, h *hand.Hand) {
		ctx, c := t.Context(), clientOf(h)
		for rule, say := range storedRules {
			stored := Spec{rule: Cron(rule, "Europe/Berlin").rule} // as an earlier release saw it
			require.NoError(t, c.Schedule(ctx, "topic", "s", stored, []byte("payload")))
			read := func() *ScheduleInfo {
				info, err := inspectorOf(c).Schedule(ctx, "topic", "s")
				require.NoError(t, err)
				require.NoError(t, info.Undecodable)
				require.Equal(t, stored, info.Spec)
				require.ErrorContains(t, info.RuleError, "no longer accepted")
				require.ErrorContains(t, info.RuleError, say)
				return info
			}
			require.True(t, read().NextSlot.After(time.Now()))
			list, err := inspectorOf(c).Schedules(ctx, "topic")
			require.NoError(t, err)
			require.ErrorContains(t, list[0].RuleError, say)

			require.NoError(t, c.PauseSchedule(ctx, "topic", "s"))
			require.NoError(t, c.ResumeSchedule(ctx, "topic", "s"))
			require.NotEmpty(t, must(c.Trigger(ctx, "topic", "s")))
			require.NoError(t, c.EditSchedule(ctx, "topic", "s", func(def *ScheduleDefinition) error { def.Payload = []byte("new"); return nil }))
			info := read()
			require.Equal(t, "new", string(info.Payload))
			require.False(t, info.NextSlot.IsZero())

			before := redistest.Dump(t, h.RDB, h.Prefix())
			for _, err := range []error{
				c.Schedule(ctx, "topic", "s", Cron(rule, "Europe/Berlin"), []byte("other")),
				c.Schedule(ctx, "topic", "new", Cron(rule, ""), nil),
				c.EditSchedule(ctx, "topic", "s", func(def *ScheduleDefinition) error { def.Spec = Cron(rule, ""); return nil }),
			} {
				require.ErrorIs(t, err, ErrInvalid)
				require.ErrorContains(t, err, say)
				require.ErrorContains(t, err, " at byte ")
			}
			require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()))
			require.NoError(t, c.Schedule(ctx, "topic", "s", Cron("0 9 * * 1", ""), nil, DiscardEdits()))
			info, err = inspectorOf(c).Schedule(ctx, "topic", "s")
			require.NoError(t, err)
			require.NoError(t, info.RuleError)
		}
		newer := Spec{rule: record.Spec{Kind: record.Cron, Text: "0 0 L * *"}}
		_, err := compiled(newer)
		require.ErrorContains(t, err, "use a calendar")
	})
}

// clientOf returns a client of the queue that a Hand's topic is in.
func clientOf(h *hand.Hand) *Client { return NewClient(h.RDB, Prefix(h.Prefix())) }

// inspectorOf returns an inspector of the queue of a client.
func inspectorOf(c *Client) *Inspector { return NewInspector(c.rdb, Prefix(c.o.prefix)) }

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
