package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

func TestGoldenEnqueue(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, format := range formats {
			w.show("enqueue", "order:cancel", "--id", "new-"+format, "--in", "30m", "--payload", `{"order":42}`, "-o", format)
		}
		w.stdin = "from stdin\x00\xff"
		w.show("enqueue", "t", "-", "--id", "piped", "--header", "tenant=7", "--retry", "3", "--backoff", "1s,1m", "--job-timeout", "30s",
			"--retention", "1d", "--expire-in", "2d", "--at", "2000-01-02 03:04")
		w.show("job", "t", "piped", "-o", "json")
		w.show("job", "t", "piped", "--payload")
		w.show("enqueue", "t", "--id", "packed", "--payload", `{"b":[1,2.5,"x",null,true,18446744073709551615],"a":-1}`, "--json-to-msgpack")
		w.show("job", "t", "packed", "-o", "jsonl")
		w.show("enqueue", "t", "--id", "packed", "--replace", "--at", "+1h")
		for _, payload := range []string{"1", "2"} {
			w.show("enqueue", "t", "--id", "burst", "--debounce", "5s/1m", "--payload", payload)
		}
		w.show("explain", "t", "burst")
		w.show("enqueue", "t", "--id", "burst", "--latest", "--payload", "3")
		w.show("enqueue", "t", "--id", "burst", "--replace", "--unless-running", "--payload", "4", "--in", "1h")
		w.show("enqueue", "mail:welcome", "--id", "dead-1", "--replace-dead", "--retry", "unlimited", "--expire-at", "+2d", "--at", "@946771200")
		for _, wrong := range [][]string{
			{"enqueue"}, {"enqueue", "t", "file", "more"}, {"enqueue", "t", "no-such-file"}, {"enqueue", "t", "-", "--payload", "x"},
			{"enqueue", "order:cancel", "--id", "order-1"}, {"enqueue", "mail:welcome", "--id", "dead-2"}, {"enqueue", "bad{topic}"},
			{"enqueue", "t", "--in", "1h", "--at", "+1h"}, {"enqueue", "t", "--at", "tomorrow 25:00"}, {"enqueue", "t", "--in", "1 hour"},
			{"enqueue", "t", "--retry", "many"}, {"enqueue", "t", "--retry", "-7"}, {"enqueue", "t", "--backoff", "1s"},
			{"enqueue", "t", "--header", "tenant"}, {"enqueue", "t", "--replace", "--replace-dead"},
			{"enqueue", "t", "--replace", "--latest"}, {"enqueue", "t", "--unless-running"}, {"enqueue", "t", "--id", "x", "--debounce", "5s"},
			{"enqueue", "t", "--debounce", "5s/1m"}, {"enqueue", "t", "--id", "x", "--debounce", "1m/5s"},
			{"enqueue", "t", "--expire-in", "1h", "--expire-at", "+1h"}, {"enqueue", "t", "--expire-at", "soon"},
			{"enqueue", "t", "--expire-in", "1h", "--in", "2h"},
			{"enqueue", "t", "--json-to-msgpack", "--payload", "{"}, {"enqueue", "t", "--json-to-msgpack", "--payload", "1 2"},
			{"enqueue", "t", "--json-to-msgpack", "--payload", "[1e999]"}, {"enqueue", "t", "--id", "base64:%"},
			{"enqueue", "t", "--no-such-flag"},
		} {
			w.show(wrong...)
		}
		w.golden("enqueue")
	})
}

func TestGoldenPause(t *testing.T) {
	inWorld(t, func(w *world) {
		w.every("pause", "mail:welcome", "order:cancel", "--for", "1h", "--because", "bank is down")
		w.show("resume", "mail:welcome", "order:cancel")
		w.every("resume", "report:weekly")
		w.show("resume", "report:weekly", "--by", "bob")
		w.show("pause", "order:cancel")
		w.show("pause", "order:cancel", "--actor", "bob")
		w.show("resume", "order:cancel", "--everyone")
		w.show("resume", "order:cancel", "--everyone", "--by", "bob")
		w.show("pause", "order:cancel", "--for", "1ns")
		w.show("pause")
		w.golden("pause")
	})
}

// What no flag names is kept.
func TestGoldenLimits(t *testing.T) {
	inWorld(t, func(w *world) {
		limits := func(topic string, flags ...string) { w.show(append([]string{"limits", topic}, flags...)...) }
		limits("order:cancel")
		limits("order:cancel", "--burst", "2")
		limits("order:cancel", "--strict")
		w.every("limits", "order:cancel", "--running", "5", "--rate", "100/1m")
		limits("order:cancel", "--rate", "5000/90s") // the burst is a tenth again
		limits("order:cancel", "--burst", "3", "--strict")
		limits("order:cancel", "--rate", "200/1d")
		limits("order:cancel", "--running", "0")
		limits("order:cancel", "--strict=false")
		limits("order:cancel", "--rate", "2/1m") // fewer than the burst
		limits("order:cancel", "--running", "7")
		for _, wrong := range [][]string{
			{"--running", "-1"}, {"--running", "1000001"}, {"--running", "many"}, {"--rate", "100"}, {"--rate", "100/soon"}, {"--rate", "-1/1m"}, {"--rate", "1/0s"},
			{"--rate", "1/400d"}, {"--rate", "1000001/1d"}, {"--rate", "10/1us"}, {"--burst", "0"}, {"--burst", "201"}, {"--burst", "200", "--strict"}, {"--rate", "0", "--burst", "1"},
			{"--rate", "0", "--strict"}, {"--none", "--running", "1"}, {"--none", "--rate", "1/1m"},
			{"--running-per-key", "1001"}, {"--rate-per-key", "1"}, {"--rate-per-key", "1/400d"}, {"--none", "--running-per-key", "1"},
			{"--on-dead", "halt"}, {"--ordered", "--on-dead", "stop"}, {"--ordered", "--running-per-key", "2"}, {"--none", "--ordered"},
		} {
			before := w.Stats("order:cancel").Limits
			r := w.show(append([]string{"limits", "order:cancel"}, wrong...)...)
			require.Equal(w, exitUsage, r.code, wrong)
			require.Equal(w, before, w.Stats("order:cancel").Limits, wrong)
		}
		w.show("stats", "order:cancel", "-o", "wide")
		w.show("topics", "-o", "wide")
		w.show("topic", "order:cancel", "--over", "0s", "--steps", "1")
		limits("order:cancel", "--rate", "0")
		require.Equal(w, delayq.Limits{Running: 7}, w.Stats("order:cancel").Limits)
		w.every("limits", "order:cancel", "--running-per-key", "2", "--rate-per-key", "10/1s")
		limits("order:cancel", "--running-per-key", "0")
		require.Equal(w, delayq.Limits{Running: 7, RatePerKey: delayq.Per(10, time.Second)}, w.Stats("order:cancel").Limits)
		limits("order:cancel", "--ordered")
		w.every("limits", "order:cancel", "--on-dead", "halt")
		require.Equal(w, delayq.Limits{Running: 7, RatePerKey: delayq.Per(10, time.Second), RunningPerKey: 1, Ordered: true, OnDead: delayq.HaltKey}, w.Stats("order:cancel").Limits)
		limits("order:cancel", "--running-per-key", "2")
		limits("order:cancel", "--ordered=false")
		require.Equal(w, delayq.Limits{Running: 7, RatePerKey: delayq.Per(10, time.Second)}, w.Stats("order:cancel").Limits)
		limits("order:cancel", "--none")
		require.Zero(w, w.Stats("order:cancel").Limits)
		limits("bad{}")
		w.show("limits")
		w.show("limits", "a", "b")

		// What waits for limits.
		limits("mail:welcome", "--running", "1")
		w.show("explain", "mail:welcome", "wait-1")
		w.show("explain", "mail:welcome", "wait-1", "-o", "json")
		w.ok("limits", "report:daily", "--rate", "1/1h")
		w.Enqueue("report:daily", "first")
		w.Pass(time.Second)
		w.Enqueue("report:daily", "second")
		w.Pass(time.Second)
		limits("report:daily")
		limits("report:daily", "-o", "json")
		w.show("explain", "report:daily", "second")
		w.show("explain", "report:daily", "second", "-o", "json")
		w.show("audit", "--limit", "3")
		w.golden("limits")
	})
}

// A hold grows, whoever makes it, and is apart from pauses.
func TestGoldenHold(t *testing.T) {
	inWorld(t, func(w *world) {
		w.every("hold", "mail:welcome", "order:cancel", "--for", "1h", "--because", "503 from the API")
		w.show("hold", "order:cancel", "--for", "30s", "--actor", "bob")
		w.show("hold", "order:cancel", "--for", "2h", "--actor", "bob")
		w.show("limits", "order:cancel")
		w.show("topic", "mail:welcome", "--over", "0s", "--steps", "1")
		w.show("stats", "mail:welcome", "-o", "wide")
		w.show("explain", "mail:welcome", "wait-1")
		w.show("explain", "mail:welcome", "wait-1", "-o", "json")
		w.show("check", "mail:welcome")
		w.show("pause", "mail:welcome")
		w.show("hold", "refund:poll", "--for", "30s") // nobody serves it
		w.show("resume", "mail:welcome")
		w.show("hold", "mail:welcome", "order:cancel", "--end")
		w.show("hold", "order:cancel", "--end") // there is none
		for _, wrong := range [][]string{
			{}, {"--for", "1h", "--end"}, {"--end", "--because", "x"}, {"--because", "x"}, {"--for", "0s"}, {"--for", "1ns"}, {"--for", "36501d"}, {"--for", "soon"},
		} {
			r := w.show(append([]string{"hold", "order:cancel"}, wrong...)...)
			require.Equal(w, exitUsage, r.code, wrong)
			require.Zero(w, w.Stats("order:cancel").HeldUntil, wrong)
		}
		long := w.do("hold", "order:cancel", "--for", "1s", "--because", strings.Repeat("x", 1025))
		require.Equal(w, exitUsage, long.code)
		require.Contains(w, long.err, "reason of 1025 bytes, at most 1024 are allowed")
		w.show("hold", "order:cancel", "--for", "36500d")
		w.ok("hold", "order:cancel", "--end")
		w.show("hold", "bad{}", "--end")
		w.show("hold")
		w.show("audit", "--limit", "7")
		w.golden("hold")
	})
}

// What is written of a rate is what its flag reads.
func TestRateIsReadBack(t *testing.T) {
	for _, d := range []time.Duration{
		time.Microsecond, 1500 * time.Millisecond, 90 * time.Second, time.Minute, time.Hour, 24 * time.Hour, 26*time.Hour + time.Second, 10*time.Hour + 10*time.Minute,
	} {
		text, _, _ := strings.Cut(rateText(&rateRecord{Starts: 20, Period: seconds(d), Burst: 2}), " ")
		var v rate
		require.NoError(t, v.Set(text))
		require.Equal(t, rate{20, d}, v)
	}
}

func TestGoldenRemove(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, format := range formats {
			w.Enqueue("empty-"+format, "x")
			_, err := w.Client.Dequeue(w.Context(), "empty-"+format, "x")
			require.NoError(w, err)
			w.show("remove", "empty-"+format, "order:cancel", "-o", format)
		}
		w.show("remove", "order:cancel")
		w.show("remove", "bad{topic}")
		require.Len(w, strings.Fields(w.ok("topics", "-o", "id")), 5)
		w.golden("remove")
	})
}

func TestGoldenMove(t *testing.T) {
	inWorld(t, func(w *world) {
		before := w.Get("order:cancel", "order-2")
		w.show("move", "order:cancel", "order-1", "order-2", "base64:/wByYXc=", "order:other")
		after := w.Get("order:other", "order-2")
		require.Equal(w, before.Due, after.Due)
		require.Equal(w, before.ExpireAt, after.ExpireAt)
		require.Equal(w, before.Payload, after.Payload)
		require.Equal(w, before.Retries, after.Retries)
		require.Equal(w, before.Timeout, after.Timeout)
		require.Equal(w, map[string]string{"raw": "\xfe"}, w.Get("order:other", "\xff\x00raw").Headers)
		require.Empty(w, w.State("order:cancel", "order-2"))
		for _, format := range formats {
			w.Enqueue("m", "of-"+format)
			w.show("move", "m", "of-"+format, "nobody", "m2", "-o", format)
		}
		w.show("move", "mail:welcome", "long-1", "m2") // running
		w.show("move", "mail:welcome", "dead-1", "m2")
		w.show("move", "mail:welcome", "dead-1", "m2", "--revive")
		w.show("move", "mail:welcome", "done-1", "m2")
		w.Enqueue("m2", "order-1")
		w.show("move", "order:other", "order-1", "m2") // a duplicate
		require.NotEmpty(w, w.State("order:other", "order-1"))
		w.show("move", "m", "x", "m")
		w.show("move", "m", "x")
		w.golden("move")
	})
}

func TestGoldenScheduleActs(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, act := range []string{"pause", "resume"} {
			w.every("schedule", act, "report:weekly", "tick")
		}
		w.show("schedule", "pause", "report:weekly", "tick", "nobody")
		w.show("schedule", "pause", "report:weekly", "nobody", "-o", "id")
		trigger := w.do("schedule", "trigger", "report:weekly", "tenant-7", "-o", "id")
		require.Regexp(w, `^tenant-7!\d+\n$`, trigger.out)
		w.show("schedule", "trigger", "report:weekly", "tenant-7")
		w.show("schedule", "remove", "report:weekly", "tick")
		w.show("schedules", "report:weekly", "-o", "id")
		w.show("schedule", "runs", "report:weekly", "tick")
		w.show("schedule", "runs", "report:weekly", "tenant-7", "--limit", "101")
		w.show("schedule", "nonsense")
		w.show("schedule", "show", "report:weekly")
		w.golden("schedule_acts")
	})
}

// An edit changes what it is told, and keeps the rest.
func TestGoldenScheduleEdit(t *testing.T) {
	inWorld(t, func(w *world) {
		edit := func(flags ...string) result {
			return w.show(append([]string{"schedule", "edit", "report:weekly", "tenant-7"}, flags...)...)
		}
		before := w.ok("schedule", "show", "report:weekly", "tenant-7")
		edit("--zone", "Asia/Shanghai")
		after := w.ok("schedule", "show", "report:weekly", "tenant-7")
		changed := map[string]bool{}
		lines := strings.Split(after, "\n")
		for _, line := range lines {
			if !strings.Contains(before, line+"\n") {
				changed[strings.Fields(line)[0]] = true
			}
		}
		require.Equal(w, map[string]bool{"spec": true, "next": true, "changed": true, "edited": true}, changed, after)

		edit("--cron", "30 9 * * 1-5", "--header", "tenant=7", "--payload", "new", "-o", "json")
		edit("--header", "region=eu", "--in", "5m", "--job-timeout", "1m", "--retention", "1d", "--backoff", "1s,1h", "--expire-in", "2h")
		edit("--unset", "header", "--unset", "max-runs", "--unset", "jitter", "--unset", "retry", "--unset", "in", "--unset", "payload",
			"--unset", "job-timeout", "--unset", "retention", "--unset", "backoff", "--unset", "expire")
		edit("--every", "10m", "--overlap", "allow", "--missed", "catch_up=5", "--start-at", "2000-02-01", "--end-at", "2000-03-01", "--max-runs", "9",
			"--jitter", "1s")
		edit("--unset", "start-at", "--unset", "end-at", "--calendar", "bank-days")
		w.show("schedule", "edit", "report:weekly", "nobody", "--max-runs", "3")
		for _, wrong := range [][]string{
			nil, {"--every", "1m", "--cron", "* * * * *"}, {"--every", "1m", "--zone", "UTC"}, {"--zone", "UTC"}, {"--cron", "* * *"},
			{"--cron", "61 */90 * * 8,5#2", "--zone", "Mars"}, {"--cron", "0 0 30 2 *"},
			{"--cron", "* * * * *", "--zone", "Europe/Atlantis"}, {"--unset", "name"}, {"--overlap", "never"}, {"--missed", "catch_up=x"},
			{"--missed", "catch_up=100000"}, {"--max-runs", "0"}, {"--payload", "x", "--payload-file", "-"}, {"--start-at", "soon"},
		} {
			edit(wrong...)
		}
		for _, task := range [][]string{{"--cron", "61 */90 * * 8,5#2", "--zone", "Mars"}, {"--cron", "5/15 * * * *", "--replace"}} {
			w.show(append([]string{"task", "add", "bad", "--sql", "x"}, task...)...)
		}
		w.show("task", "list")
		w.golden("schedule_edit")
	})
}

// A sync adds, changes and removes what differs, and nothing else.
func TestGoldenScheduleSync(t *testing.T) {
	inWorld(t, func(w *world) {
		file := filepath.Join(w.TempDir(), "crons.yaml")
		write := func(text string) { require.NoError(w, os.WriteFile(file, []byte(text), 0o600)) }
		sync := func(flags ...string) result {
			r := w.do(append([]string{"schedule", "sync", file}, flags...)...)
			r.err = strings.ReplaceAll(r.err, file, "crons.yaml")
			w.text.WriteString("$ delayq schedule sync crons.yaml " + strings.Join(flags, " ") + "\n" + r.out)
			for line := range strings.Lines(r.err) {
				w.text.WriteString("! " + line)
			}
			if r.err != "" && !strings.HasSuffix(r.err, "\n") {
				w.text.WriteString("\n")
			}
			w.text.WriteString(map[bool]string{true: "exit " + string(rune('0'+r.code)) + "\n"}[r.code != 0] + "\n")
			w.valid(flags, r)
			return r
		}
		const crons = `
topic: report:weekly
schedules:
  - name: tenant-7
    cron: 0 9 * * 1
    zone: Europe/Berlin
    payload: '{"tenant":7}'
    retry: 5
    jitter: 1m
    max_runs: 10
  - name: tenant-8
    cron: 0 10 * * 1
    headers: {tenant: 8}
    backoff: [1s, 1h]
    timeout: 1m
    expire_in: 2d
    retention: 1w
    in: 5m
    overlap: allow
    missed: catch_up=2
    start_at: 2000-02-01T00:00:00Z
    end_at: 2000-03-01T00:00:00Z
  - name: raw
    topic: other
    every: 1d
    payload_base64: /w==
    expire_at: 2001-01-01T00:00:00Z
  - name: days
    topic: other
    calendar: bank-days
`
		write(crons)
		for _, format := range formats {
			sync("--dry-run", "-o", format)
		}
		sync() // without a terminal
		w.terminal, w.stdin = true, "n\n"
		sync()
		require.Equal(w, "tenant-7\ntick\n", w.ok("schedules", "report:weekly", "-o", "id"))
		w.stdin = "y\n"
		sync()
		w.terminal = false
		sync("--yes") // nothing is left to do
		w.show("schedule", "show", "report:weekly", "tenant-8")

		// What an operator has edited remains.
		w.ok("schedule", "edit", "report:weekly", "tenant-7", "--cron", "0 12 * * 1")
		sync("--dry-run")
		sync("--dry-run", "--discard-edits")
		write(strings.ReplaceAll(strings.ReplaceAll(crons, "retry: 5", "retry: unlimited"), "0 10 * * 1", "0 11 * * 1"))
		sync("--yes")

		write(`{"topics": ["other"], "schedules": [{"topic": "report:weekly", "name": "smile 😀",` + "\t" + `"every": "90s", "retry": 3}]}`)
		sync("--yes", "--keep-others")
		sync("--yes")
		for _, wrong := range []string{
			"", "schedules: [{name: a, every: 1m}]", "schedules: [{topic: t, name: a}]", "topic: t\nschedules: [{name: a, every: 1m}, {name: a, every: 2m}]",
			"topic: t\nschedules: [{name: a, every: 1m, cron: '* * * * *'}]", "topic: t\nschedules: [{name: a, cron: '* *', zone: UTC}]",
			"topic: t\nschedules: [{name: a, cron: '61 */90 * * 8,5#2', zone: Mars}, {name: b, cron: '? * * * *'}]",
			"topic: t\nschedules: [{name: a, every: 1m, zone: UTC, overlap: x, missed: y, retry: z, backoff: [1s], payload: a, payload_base64: '%'}]",
			"topic: t\nschedules: [{name: a, every: soon}]", "topic: t\nschedules: [{name: a, every: 1m, colour: red}]", "schedules: 7",
			"topic: t\nschedules: [{name: a, every: 1m, max_runs: -1}]", `{"topic": "t", "schedules": [{"name": "", "every": "1m"}]}`,
		} {
			write(wrong)
			sync("--yes")
		}
		w.show("schedule", "sync", "no-such-file")
		w.golden("schedule_sync")
	})
}

func TestGoldenCheck(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, format := range formats {
			w.show("check", "mail:welcome", "--max-lateness", "10m", "-o", format)
		}
		w.every("check")
		w.show("check", "mail:welcome", "--max-lateness", "10m", "--max-dead", "1")
		w.show("check", "mail:welcome", "--max-lateness", "1s")
		w.show("check", "order:cancel")
		w.show("check", "order:cancel", "--need-server")
		w.Enqueue("report:weekly", "late")
		w.Pass(10e9)
		w.show("check", "report:weekly")
		w.show("check", "--max-lateness", "0s")
		w.show("check", "--max-lateness", "soon")
		w.show("check", "--max-dead", "-1")
		w.show("check", "bad{topic}")
		w.down = true
		w.show("check")
		w.golden("check")
	})
}

func TestGoldenDoctor(t *testing.T) {
	inWorld(t, func(w *world) {
		w.every("doctor")
		require.NoError(w, w.RDB.ZRem(w.Context(), "q:{order:cancel}:bucket", "order-1").Err())
		w.every("doctor", "order:cancel")
		w.show("doctor", "--repair")
		w.show("doctor", "order:cancel")
		require.Equal(w, delayq.StateScheduled, w.State("order:cancel", "order-1"))
		w.golden("doctor")
	})
}

func TestGoldenAudit(t *testing.T) {
	inWorld(t, func(w *world) {
		w.show("audit")
		w.ok("pause", "mail:welcome", "--because", "bank is down")
		w.ok("schedule", "pause", "report:weekly", "tick", "--actor", "bob")
		w.every("audit")
		w.show("audit", "--limit", "1")
		w.show("audit", "--limit", "1001")
		w.golden("audit")
	})
}

func TestGoldenAbout(t *testing.T) {
	inWorld(t, func(w *world) {
		w.every("version")
		w.every("acl", "producer", "--prefix", "shop")
		w.show("acl", "king")
		w.show("acl")
		w.golden("about")
	})
}

// A key is held, paused and resumed, whether it has jobs or not.
func TestGoldenKey(t *testing.T) {
	inWorld(t, func(w *world) {
		key := func(flags ...string) result {
			return w.show(append([]string{"key", "mail:welcome", "tenant-7"}, flags...)...)
		}
		key()
		for i := range 2 {
			_, err := w.Client.Enqueue(w.Context(), "mail:welcome", fmt.Sprint("of the key ", i), nil, delayq.Key("tenant-7"))
			require.NoError(w, err)
		}
		w.every("key", "mail:welcome", "tenant-7", "--hold", "90s", "--weight", "3")
		w.every("keys", "mail:welcome")
		key("--pause")
		w.show("keys", "mail:welcome")
		key("--resume", "--weight", "1")
		w.every("key", "mail:welcome", "tenant-7", "--running", "2", "--rate", "100/1m")
		key("--weight", "5") // the limits are kept
		limits := func() delayq.KeyLimits {
			k, err := w.Inspector.Key(w.Context(), "mail:welcome", "tenant-7")
			require.NoError(w, err)
			return k.Limits
		}
		w.every("key", "mail:welcome", "tenant-7", "--burst", "3", "--strict")
		require.Equal(w, delayq.KeyLimits{Weight: 5, Running: 2, Rate: delayq.Per(100, time.Minute).Burst(3).Strict()}, limits())
		key("--rate", "200/1d") // burst and strictness are kept
		require.Equal(w, delayq.Per(200, 24*time.Hour).Burst(3).Strict(), limits().Rate)
		key("--strict=false")
		require.Equal(w, delayq.Per(200, 24*time.Hour).Burst(3), limits().Rate)
		key("--rate", "3/1m", "--burst", "1", "--strict", "--hold", "1s")
		for _, wrong := range [][]string{
			{"--burst", "0"}, {"--burst", "-1"}, {"--burst", "3"}, {"--burst", "many"}, {"--rate", "5000001/1d", "--burst", "1"},
			{"--rate", "0", "--burst", "1"}, {"--rate", "0", "--strict"}, {"--burst", "4", "--strict=false", "--pause"},
		} {
			before := limits()
			require.Equal(w, exitUsage, key(wrong...).code, wrong)
			require.Equal(w, before, limits(), wrong)
		}
		key("--running", "0", "--rate", "0", "--weight", "1")
		require.Zero(w, limits())
		for _, flag := range []string{"--burst=1", "--strict"} { // there is no rate
			require.Equal(w, exitUsage, key(flag).code, flag)
		}
		for _, wrong := range [][]string{
			{"--hold", "0s"}, {"--hold", "101y"}, {"--hold", "1h", "--pause"}, {"--pause", "--resume"}, {"--weight", "0"}, {"--weight", "1001"},
			{"--running", "-1"}, {"--running", "1001"}, {"--rate", "x"}, {"--rate", "1/9000h"},
		} {
			require.Equal(w, exitUsage, key(wrong...).code, wrong)
		}
		w.show("key", "mail:welcome")
		w.show("key", "bad{}", "k")
		w.show("key", "mail:welcome", "")
		w.golden("key")
	})
}

// A job gets a priority among those of its key, and loses it.
func TestGoldenPriority(t *testing.T) {
	inWorld(t, func(w *world) {
		priority := func(args ...string) result {
			return w.show(append([]string{"priority", "mail:welcome"}, args...)...)
		}
		first := func() string {
			k, err := w.Inspector.Key(w.Context(), "mail:welcome", "tenant-7")
			require.NoError(w, err)
			return k.First
		}
		for _, id := range []string{"a", "b"} {
			_, err := w.Client.Enqueue(w.Context(), "mail:welcome", id, nil, delayq.Key("tenant-7"))
			require.NoError(w, err)
		}
		_, err := w.Client.Enqueue(w.Context(), "mail:welcome", "plain", nil)
		require.NoError(w, err)
		require.Equal(w, "a", first())
		w.every("priority", "mail:welcome", "b", "--ahead", "1h")
		require.Equal(w, "b", first())
		priority("b", "--ahead", "0s")
		require.Equal(w, "a", first())
		priority("a", "--behind", "600000.9ms") // whole milliseconds count
		require.Equal(w, "b", first())
		for _, wrong := range [][]string{
			{}, {"--ahead", "1h", "--behind", "1h"}, {"--ahead", "25h"}, {"--behind", "25h"}, {"--behind", "x"}, {"--ahead=-1h"},
		} {
			require.Equal(w, exitUsage, priority(append([]string{"a"}, wrong...)...).code, wrong)
		}
		priority("plain", "--ahead", "1h")
		priority("nobody", "--ahead", "1h")
		priority("--ahead", "1h")
		w.golden("priority")
	})
}

// A job that is stored by hand has the Defaults of its handler, and not those of the clients that
// store other jobs of its topic, as --help says.
func TestEnqueueAndDefaults(t *testing.T) {
	inWorld(t, func(w *world) {
		program := delayq.NewClient(w.Redis.Client(), delayq.Prefix(queuetest.Prefix), delayq.Defaults(delayq.Retry(7), delayq.Header("from", "shop")))
		_, err := program.Enqueue(w.Context(), "defaults", "program", nil)
		require.NoError(w, err)
		w.ok("enqueue", "defaults", "--id", "hand")
		w.ok("enqueue", "defaults", "--id", "given", "--retry", "1")
		get := func(id string) *delayq.JobInfo {
			info, err := w.Client.Get(w.Context(), "defaults", id)
			require.NoError(w, err)
			return info
		}
		require.Equal(w, "7 map[from:shop]", fmt.Sprint(get("program").Retries, " ", get("program").Headers))
		require.Equal(w, "-1 map[]", fmt.Sprint(get("hand").Retries, " ", get("hand").Headers))

		w.Serve("defaults", func(context.Context, *delayq.Job) error { return errors.New("no") }, delayq.Defaults(delayq.Retry(0)))
		w.Pass(time.Second)
		require.Equal(w, delayq.StateDead, get("hand").State, "the handler has no retries for a job that says nothing")
		require.Equal(w, delayq.StateScheduled, get("given").State)
		require.Equal(w, delayq.StateScheduled, get("program").State)
		for _, word := range []string{"Defaults that a program gives its client", "handler and of its server apply to every run"} {
			require.Contains(w, w.ok("enqueue", "--help"), word)
		}
	})
}
