package tests

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
)

// moment matches a time of an entry of the audit, which is that of a real Redis.
var moment = regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+Z`)

// Each act has in the audit what it has changed, as it was before, and as it is now.
func TestAuditHasWhatWasBefore(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		c, ctx := f.Client, delayq.WithActor(t.Context(), "alice")
		at := time.Date(2035, 1, 2, 3, 4, 5, 0, time.UTC)
		f.Enqueue("a", delayq.ProcessAt(at))
		f.Enqueue("b", delayq.ProcessAt(at.Add(time.Hour)))
		f.Enqueue("k", delayq.Key("key"), delayq.Priority(5*time.Second))
		secret := []delayq.ScheduleOption{delayq.Header("token", "hunter2"), delayq.Retry(3)}
		edit := func(name string, edit func(d *delayq.ScheduleDefinition)) func() error {
			return func() error {
				return c.EditSchedule(ctx, "topic", name, func(d *delayq.ScheduleDefinition) error { edit(d); return nil })
			}
		}
		pause := func(p delayq.Pause) func() error { return func() error { return c.Pause(ctx, "topic", p) } }
		for _, test := range []struct {
			name     string
			call     func() error
			now, was string
		}{
			{"limits", func() error { return c.SetLimits(ctx, "topic", delayq.Limits{Running: 3}) }, "running 3", "none"},
			{"other limits", func() error {
				return c.SetLimits(ctx, "topic", delayq.Limits{Running: 5, RatePerKey: delayq.Per(2, time.Minute)})
			}, "running 5, rate per key 2 per 1m0s, burst 1", "running 3"},
			{"no limits", func() error { return c.SetLimits(ctx, "topic", delayq.Limits{}) }, "none", "running 5, rate per key 2 per 1m0s, burst 1"},

			{"key limits", func() error { return c.SetKeyLimits(ctx, "topic", "key", delayq.KeyLimits{Weight: 3}) }, `key "key", weight 3`, "weight 1"},
			{"other key limits", func() error { return c.SetKeyLimits(ctx, "topic", "key", delayq.KeyLimits{Running: 2}) }, `key "key", weight 1, running 2`, "weight 3"},
			{"no key limits", func() error { return c.SetKeyLimits(ctx, "topic", "key", delayq.KeyLimits{}) }, `key "key", weight 1`, "weight 1, running 2"},

			{"pause", pause(delayq.Pause{By: "ops", Reason: "bank \xff\x00"}), `by "ops", reason "bank \xff\x00"`, "none"},
			{"pause of another", pause(delayq.Pause{By: "dev", For: time.Hour}), `by "dev", for 1h0m0s`, "none"},
			{"pause again", pause(delayq.Pause{By: "dev"}), `by "dev"`, `by "dev", since T, until T`},
			{"resume", func() error { return c.Resume(ctx, "topic", "ops") }, `by "ops"`, `by "ops", reason "bank \xff\x00", since T`},
			{"resume nothing", func() error { return c.Resume(ctx, "topic", "ops") }, `by "ops"`, "none"},
			{"pause once more", pause(delayq.Pause{By: "x"}), `by "x"`, "none"},
			{"resume all", func() error { return c.ResumeAll(ctx, "topic") }, "", `by "dev", since T; by "x", since T`},

			{"hold", func() error { return c.Hold(ctx, "topic", time.Hour, "down \x00") }, `for 1h0m0s, reason "down \x00"`, "none"},
			{"shorter hold", func() error { return c.Hold(ctx, "topic", time.Minute, "") }, "for 1m0s", `by "alice", reason "down \x00", until T`},
			{"end hold", func() error { return c.EndHold(ctx, "topic") }, "", `by "alice", reason "down \x00", until T`},
			{"end no hold", func() error { return c.EndHold(ctx, "topic") }, "", "none"},

			{"hold key", func() error { return c.HoldKey(ctx, "topic", "key", time.Hour) }, `key "key" for 1h0m0s`, "none"},
			{"pause key", func() error { return c.PauseKey(ctx, "topic", "key") }, `key "key"`, "until T"},
			{"resume key", func() error { return c.ResumeKey(ctx, "topic", "key") }, `key "key"`, "paused"},
			{"resume key again", func() error { return c.ResumeKey(ctx, "topic", "key") }, `key "key"`, "none"},

			{"priority", func() error { return c.SetPriority(ctx, "topic", "k", -time.Minute) }, "priority -1m0s", "priority 5s"},
			{"reschedule", func() error { return c.Reschedule(ctx, "topic", "a", delayq.ProcessIn(time.Hour)) }, "due in 1h0m0s", "scheduled, due 2035-01-02T03:04:05Z"},
			{"reschedule ready", func() error { return c.Reschedule(ctx, "topic", "k", delayq.ProcessAt(at)) }, "due T", "ready"},
			{"reschedule batch", func() error {
				due := delayq.ProcessAt(at)
				_, err := c.RescheduleBatch(ctx, []delayq.NewDue{
					{Topic: "topic", ID: "b", Due: due}, {Topic: "topic", ID: "none", Due: due}, {Topic: "topic", ID: "k", Due: due},
				})
				return missing(err)
			}, `"b" due T, "none" due T, "k" due T`, `"b" scheduled, due 2035-01-02T04:04:05Z; "k" scheduled, due 2035-01-02T03:04:05Z`},
			{"bury", func() error { return c.Bury(ctx, "topic", "k", "why") }, `reason "why"`, "scheduled"},
			{"revive", func() error { return c.Revive(ctx, "topic", "k") }, "", "dead"},
			{"cancel", func() error { _, err := c.Dequeue(ctx, "topic", "k"); return err }, "", "ready"},
			{"cancel batch", func() error {
				_, err := c.Enqueue(t.Context(), "other", "a", nil)
				require.NoError(t, err)
				_, err = c.CancelBatch(ctx, append(refs("a"), delayq.JobRef{Topic: "other", ID: "a"}))
				return err
			}, `"topic" "a", "other" "a"`, `"topic" "a" scheduled; "other" "a" ready`},

			{"schedule", func() error {
				return c.Schedule(ctx, "topic", "s", delayq.Cron("0 9 * * *", "Europe/Berlin"), []byte("secret"), secret...)
			}, `Spec "cron 0 9 * * * Europe/Berlin", Payload of 6 bytes, SHA-256 2bb80d53, Retry 3, Headers header "token" of 7 bytes`, "none"},
			{"schedule anew", func() error {
				return c.Schedule(ctx, "topic", "s", delayq.Every(time.Hour), []byte("secret"), secret...)
			}, `Spec "every 1h0m0s"`, `Spec "cron 0 9 * * * Europe/Berlin"`},
			{"edit payload", edit("s", func(d *delayq.ScheduleDefinition) { d.Payload = nil }), "Payload none", "Payload of 6 bytes, SHA-256 2bb80d53"},
			{"edit headers", edit("s", func(d *delayq.ScheduleDefinition) {
				d.Options = append(d.Options, delayq.Header("token", "x"))
			}), `Headers header "token" of 1 bytes`, `Headers header "token" of 7 bytes`},
			{"discard edits", func() error {
				return c.Schedule(ctx, "topic", "s", delayq.Every(time.Hour), nil, delayq.Header("token", "x"), delayq.Retry(3), delayq.DiscardEdits())
			}, "no edits", "edits of Headers Payload"},
			{"edit all", edit("s", func(d *delayq.ScheduleDefinition) {
				d.Options = []delayq.ScheduleOption{
					delayq.StartAt(at), delayq.EndAt(at.Add(time.Hour)), delayq.MaxRuns(4), delayq.Jitter(time.Second), delayq.OverlapAllow, delayq.MissedCatchUp(2),
					delayq.ProcessIn(time.Minute), delayq.Retry(-1), delayq.Backoff(time.Second, time.Minute), delayq.Timeout(time.Second),
					delayq.ExpireIn(time.Hour), delayq.Retention(time.Hour), delayq.Key("k"), delayq.Priority(time.Second),
				}
			}), `StartAt 2035-01-02T03:04:05Z, EndAt 2035-01-02T04:04:05Z, MaxRuns 4, Jitter 1s, OnOverlap OverlapAllow, OnMissed MissedCatchUp(2), ` +
				`ProcessIn 1m0s, Retry unlimited, Backoff 1s to 1m0s, Timeout 1s, Expire 1h0m0s, Retention 1h0m0s, Headers none, Key "k", priority 1s`,
				`StartAt none, EndAt none, MaxRuns none, Jitter none, OnOverlap OverlapSkip, OnMissed MissedRunOnce, ` +
					`ProcessIn none, Retry 3, Backoff none, Timeout none, Expire none, Retention none, Headers header "token" of 1 bytes, Key none`},
			{"pause schedule", func() error { return c.PauseSchedule(ctx, "topic", "s") }, "", "active"},
			{"pause schedule again", func() error { return c.PauseSchedule(ctx, "topic", "s") }, "", "paused, since T"},
			{"resume schedule", func() error { return c.ResumeSchedule(ctx, "topic", "s") }, "", "paused, since T"},
			{"trigger", func() error { _, err := c.Trigger(ctx, "topic", "s"); return err }, "", ""},
			{"edit to little", edit("s", func(d *delayq.ScheduleDefinition) { d.Options, d.Payload = nil, []byte("\x00 x") }), "*", "*"},
			{"unschedule", func() error { return c.Unschedule(ctx, "topic", "s") }, "", `Spec "every 1h0m0s", Payload of 3 bytes, SHA-256 7a39bd62`},
			{"schedule much", func() error { return c.Schedule(ctx, "topic", "s", delayq.Every(time.Hour), make([]byte, 100_000)) }, "*", "none"},
			{"unschedule much", func() error { return c.Unschedule(ctx, "topic", "s") }, "", `Spec "every 1h0m0s", Payload of 100000 bytes`},
			{"schedule with a header", func() error {
				return c.Schedule(ctx, "topic", "s", delayq.Every(time.Hour), make([]byte, 5000), delayq.Header("token", strings.Repeat("x", 5000)))
			}, "*", "none"},
			{"unschedule with a header", func() error { return c.Unschedule(ctx, "topic", "s") }, "",
				`Spec "every 1h0m0s", Payload of 5000 bytes, SHA-256 7ca5bd87, Headers header "token" of 5000 bytes`},
			{"damaged schedule", func() error {
				require.NoError(t, f.RDB.HSet(ctx, f.Key("schedules"), "s", "12345678rubbish").Err())
				return c.Schedule(ctx, "topic", "s", delayq.Every(time.Hour), nil)
			}, `Spec "every 1h0m0s"`, "unreadable"},
			{"unschedule damaged", func() error {
				require.NoError(t, f.RDB.HSet(ctx, f.Key("schedules"), "s", "12345678rubbish").Err())
				return c.Unschedule(ctx, "topic", "s")
			}, "", ""},
		} {
			require.NoError(t, test.call(), test.name)
			list, err := f.Inspector.Audit(t.Context(), 1)
			require.NoError(t, err)
			now, was := moment.ReplaceAllString(list[0].Filter, "T"), moment.ReplaceAllString(list[0].Was, "T")
			for _, one := range []struct{ want, got, short string }{{test.now, list[0].Filter, now}, {test.was, list[0].Was, was}} {
				if one.want != "*" && one.want != one.got {
					require.Equal(t, one.want, one.short, test.name)
				}
			}
			for _, word := range []string{"hunter2", "secret"} {
				require.NotContains(t, list[0].Filter+list[0].Was, word, test.name)
			}
		}
	})
}

// After an act whose outcome is unknown, the audit says nothing of what was before. The reply that
// is lost is that of the setting, or of the look for partitions that came meanwhile.
func TestAuditOfAnUnknownOutcomeHasNothingBefore(t *testing.T) {
	for lost, name := range map[int]string{1: "the setting", 2: "the map after it"} {
		t.Run(name, func(t *testing.T) {
			redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
				require.NoError(t, queuetest.LoadScripts(t.Context(), rdb))
				c, ctx := delayq.NewClient(rdb), delayq.WithActor(t.Context(), "alice")
				require.NoError(t, c.SetLimits(ctx, "topic", delayq.Limits{Running: 3}))
				rdb.AddHook(&deaf{hears: lost})
				require.ErrorIs(t, c.SetLimits(ctx, "topic", delayq.Limits{Running: 4}), delayq.ErrUnknownOutcome)
				list, err := delayq.NewInspector(rdb).Audit(ctx, 2)
				require.NoError(t, err)
				require.Equal(t, "running 4||0", fmt.Sprintf("%s|%s|%d", list[0].Filter, list[0].Was, list[0].Count))
				require.Equal(t, "running 3|none|1", fmt.Sprintf("%s|%s|%d", list[1].Filter, list[1].Was, list[1].Count))
			})
		})
	}
}

// A deaf hears the replies to some calls of scripts, and loses the one after them.
type deaf struct{ hears int }

func (d *deaf) DialHook(next redis.DialHook) redis.DialHook { return next }
func (d *deaf) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (d *deaf) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if strings.HasPrefix(cmd.Name(), "evalsha") {
			if d.hears--; d.hears == -1 {
				err = io.ErrUnexpectedEOF
				cmd.SetErr(err)
			}
		}
		return err
	}
}

// What was before a batch is cut to the bound of an entry.
func TestAuditOfALongBatchIsCut(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		var jobs []delayq.NewDue
		for i := range 100 {
			id := fmt.Sprint("job ", i)
			f.Enqueue(id, delayq.ProcessIn(time.Hour))
			jobs = append(jobs, delayq.NewDue{Topic: "topic", ID: id, Due: delayq.ProcessIn(time.Minute)})
		}
		_, err := f.Client.RescheduleBatch(delayq.WithActor(t.Context(), "alice"), jobs)
		require.NoError(t, err)
		list, err := f.Inspector.Audit(t.Context(), 1)
		require.NoError(t, err)
		require.Len(t, list[0].Was, record.MaxFilter)
		require.True(t, strings.HasPrefix(list[0].Was, `"job 0" scheduled, due 20`), list[0].Was)
		require.EqualValues(t, 100, list[0].Count)
	})
}
