package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
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
		w.show("enqueue", "mail:welcome", "--id", "dead-1", "--replace-dead", "--retry", "unlimited", "--expire-at", "+2d", "--at", "@946771200")
		for _, wrong := range [][]string{
			{"enqueue"}, {"enqueue", "t", "file", "more"}, {"enqueue", "t", "no-such-file"}, {"enqueue", "t", "-", "--payload", "x"},
			{"enqueue", "order:cancel", "--id", "order-1"}, {"enqueue", "mail:welcome", "--id", "dead-2"}, {"enqueue", "bad{topic}"},
			{"enqueue", "t", "--in", "1h", "--at", "+1h"}, {"enqueue", "t", "--at", "tomorrow"}, {"enqueue", "t", "--in", "1 hour"},
			{"enqueue", "t", "--retry", "many"}, {"enqueue", "t", "--retry", "-7"}, {"enqueue", "t", "--backoff", "1s"},
			{"enqueue", "t", "--header", "tenant"}, {"enqueue", "t", "--replace", "--replace-dead"},
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
			{"--cron", "* * * * *", "--zone", "Europe/Atlantis"}, {"--unset", "name"}, {"--overlap", "never"}, {"--missed", "catch_up=x"},
			{"--missed", "catch_up=100000"}, {"--max-runs", "0"}, {"--payload", "x", "--payload-file", "-"}, {"--start-at", "soon"},
		} {
			edit(wrong...)
		}
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
