package cli

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// A topic that does not exist is a typo, unless --create says that it is yet to come.
func TestTypoOfATopicIsNoSuccess(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, args := range [][]string{
			{"pause", "order:cancle"}, {"resume", "order:cancle"}, {"hold", "order:cancle", "--for", "1m"}, {"hold", "order:cancle", "--end"}, {"limits", "order:cancle", "--running", "1"},
			{"key", "order:cancle", "k", "--pause"}, {"pause", "order:cancel", "order:cancle"},
		} {
			r := w.do(args...)
			require.Equal(w, exitNotFound, r.code, args)
			require.Contains(w, r.err, `there is no topic "order:cancle", and nothing was done; did you mean "order:cancel"?`, args)
		}
		require.NotContains(w, w.ok("topics"), "paused by alice")
		require.NotContains(w, w.ok("topics"), "cancle")
		for _, args := range [][]string{{"pause", "new:a", "--create"}, {"hold", "new:b", "--for", "1h", "--create"}, {"limits", "new:c", "--running", "1", "--create"}, {"key", "new:d", "k", "--pause", "--create"}} {
			w.ok(args...)
		}
		require.Contains(w, w.ok("topic", "new:a", "--over", "0s"), "paused by alice")
		require.Contains(w, w.ok("topic", "new:c", "--over", "0s"), "running 1")
		// Whoever has made a topic with --create can take it back without.
		for _, args := range [][]string{{"resume", "new:a"}, {"hold", "new:b", "--end"}, {"limits", "new:c", "--running", "0"}} {
			w.ok(args...)
			require.Equal(w, exitNotFound, w.do(args...).code, args)
		}
		// A topic that only a server knows exists.
		w.Serve("served", queuetest.Nothing, delayq.Concurrency(1))
		w.Pass(time.Minute)
		w.ok("pause", "served")
		// What only looks needs none.
		w.ok("limits", "nosuch")
	})
}

// The line of a role has the keys of a prefix, whatever signs it has, and of no other.
func TestACLOfOddPrefixes(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	server := redistest.Start(t, redistest.NoRoles...)
	rdb := server.Client(t)
	_, err := delayq.NewClient(rdb, delayq.Prefix("shop1")).Enqueue(t.Context(), "t", "j", nil)
	require.NoError(t, err)
	for n, prefix := range []string{"shop?", "[a-z]hop1", `sh\op`, "sho[p]", `shop\1`} {
		_, err := delayq.NewClient(rdb, delayq.Prefix(prefix)).Enqueue(t.Context(), "t", "j", nil)
		require.NoError(t, err)
		words := strings.Fields(newTool(t, server.Addr(), prefix).ok("acl", "operator"))
		set := []any{"ACL", "SETUSER", words[1] + string(rune('0'+n))}
		for _, word := range words[2:] {
			set = append(set, strings.Replace(word, ">change-me-operator", ">s3cret", 1))
		}
		require.NoError(t, rdb.Do(t.Context(), set...).Err())
		user := words[1] + string(rune('0'+n)) + "@" + server.Addr()
		require.Equal(t, "j\n", newTool(t, user, prefix, "DELAYQ_PASSWORD=s3cret").ok("jobs", "t", "--state", "ready", "-o", "id"), prefix)
		r := newTool(t, user, "shop1", "DELAYQ_PASSWORD=s3cret").do("", "jobs", "t", "--state", "ready")
		require.Equal(t, exitRefused, r.code, "%s: %s", prefix, r.out+r.err)
	}
	for _, prefix := range []string{"x ~* +@all", "a\nuser evil on nopass ~* +@all", "a\tb", "a\u00a0b", "a\u2028b", "{x}", "a*"} {
		r := newTool(t, server.Addr(), prefix).do("", "acl", "operator")
		require.Equal(t, exitUsage, r.code, "%q: %s", prefix, r.out)
		require.Empty(t, r.out)
	}
}

// What is read from a file or from stdin is bounded, and so is how deep it is.
func TestInputIsBounded(t *testing.T) {
	inWorld(t, func(w *world) {
		deep := strings.Repeat("[", mostDepth+2) + strings.Repeat("]", mostDepth+2)
		r := w.do("enqueue", "t", "--json-to-msgpack", "--payload", deep)
		require.Equal(w, exitUsage, r.code)
		require.Contains(w, r.err, "nested more than 100 deep")
		w.ok("enqueue", "t", "--json-to-msgpack", "--payload", deep[1:len(deep)-1])
		w.stdin = strings.Repeat("order-1\n", defaultAtMost+5)
		r = w.do("cancel", "order:cancel", "-", "--yes")
		require.Equal(w, exitUsage, r.code)
		require.Contains(w, r.err, "--at-most 10,000")
		require.Equal(w, delayq.StateScheduled, w.State("order:cancel", "order-1"))
	})
	_, err := bounded(endless{}, "stdin", 1000)
	require.ErrorContains(t, err, "stdin: has more than 1,000 bytes")
	if _, err := os.Stat("/dev/zero"); err == nil {
		_, err := fileOf("/dev/zero", 64<<10)
		require.ErrorContains(t, err, "/dev/zero: has more than 65,536 bytes")
	}
	file := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(file, []byte("abc"), 0o600))
	data, err := fileOf(file, 3)
	require.NoError(t, err)
	require.Equal(t, "abc", string(data))
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// Days are those of the zone of the operator, and a time that cannot be is refused.
func TestDays(t *testing.T) {
	inWorld(t, func(w *world) { // at 2000-01-01 00:01:05 UTC
		due := func(at string) string {
			r := w.do("enqueue", "t", "--at", at, "-o", "json")
			require.Zero(w, r.code, r.err)
			var record enqueuedRecord
			require.NoError(w, json.Unmarshal([]byte(r.out), &record))
			return time.Time(record.Due).UTC().Format(time.DateTime)
		}
		require.Equal(w, "2000-01-02 09:00:00", due("tomorrow 9:00"))
		require.Equal(w, "2000-01-02 00:00:00", due("tomorrow"))
		require.Equal(w, "2000-01-01 23:59:30", due("today 23:59:30"))
		for _, at := range []string{"tomorrow 25:00", "tomorrow ", "tomorrow 9", "next week", "@NaN", "@Inf", "@1e300", "@-1e300", "@", "++1h", "+-1h"} {
			r := w.do("enqueue", "t", "--at", at)
			require.Equal(w, exitUsage, r.code, at)
			require.Contains(w, r.err, "is no time", at)
		}
		require.NotContains(w, w.ok("jobs", "mail:welcome", "--state", "dead", "--since", "yesterday 12:00", "-o", "id"), "no dead")
	})
}

// Any bytes are a line of JSON without anything that a terminal takes for a command, and are read
// back as they were. As a word for a shell too.
func FuzzWords(f *testing.F) {
	for _, text := range []string{"", "order-1", "a\u009b2J", "\x9b", "\u202e", "\U000e0041", "$(x)", "--all", "base64:eA==", "訂單!123456789012", "a\tb\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		line, err := marshal(map[string]string{"x": text})
		if err != nil || bytes.ContainsFunc(line, func(r rune) bool { return !unicode.IsGraphic(r) }) {
			t.Fatalf("%q: %q, %v", text, line, err)
		}
		var back map[string]string
		if err := json.Unmarshal(line, &back); err != nil || utf8.ValidString(text) && back["x"] != text {
			t.Fatalf("%q: %q, %v", text, line, err)
		}
		for _, word := range []string{shellWord(text), idLine(text), idText(text)} {
			if id, err := idOf(word); err != nil || id != text {
				t.Fatalf("%q: %q, %q, %v", text, word, id, err)
			}
		}
		if word := shellWord(text); strings.ContainsAny(word, " \t\n'\"\\$`;&|<>(){}[]*?!#~") || strings.ContainsRune("-=%", rune(word[0])) {
			t.Fatalf("%q: %q", text, word)
		}
	})
}

// A line of any bytes is a job, or an error.
func FuzzImport(f *testing.F) {
	f.Add(`{"schema":"delayq.export/1","topic":"t","id":"a","state":"scheduled","due":"2026-01-02T03:04:05Z","payload":"x","headers":{"a":"b"},"retry":3,"backoff":[1,2],"timeout":1e300}`)
	f.Add(`{"schema":"delayq.export/1","topic":"t","id":"a","state":"ready","key":"k","key_base64":"/w==","priority":-1e300}`)
	f.Add(`{"schema":"delayq.export/1","topic":"t","id_base64":"/w==","state":"dead","headers_base64":{"!":"x"},"retention":-1e-300}`)
	f.Fuzz(func(t *testing.T, line string) {
		i := &importing{dead: true}
		if err := i.read([]byte(line)); err == nil && len(i.batch) == 1 && i.batch[0].ID == "" {
			t.Fatalf("%q", line)
		}
	})
}

// A file of any bytes is one of schedules, or an error.
func FuzzScheduleFile(f *testing.F) {
	f.Add("topic: t\nschedules:\n- {name: a, every: 1h}")
	f.Add("a: &a [*a]")
	f.Add("{\"topics\": [\"a\"], \"schedules\": [{\"name\": \"x\", \"cron\": \"* * * * *\", \"backoff\": [\"1s\"]}]}")
	f.Add("schedules: " + strings.Repeat("[", 200) + strings.Repeat("]", 200))
	f.Fuzz(func(t *testing.T, text string) {
		file, err := readSchedules([]byte(text))
		if err != nil {
			return
		}
		for _, e := range file.Schedules {
			if _, _, _, err := e.arguments(false); err != nil && err.Error() == "" {
				t.Fatalf("%q", text)
			}
		}
	})
}

// A time of any bytes is one that a year of four digits has, or an error.
func FuzzInstant(f *testing.F) {
	for _, text := range []string{"@1136214245", "@NaN", "24h", "+1h30m", "tomorrow 9:00", "2006-01-02", "now", "@-9e15"} {
		f.Add(text)
	}
	zero := time.Duration(0)
	f.Fuzz(func(t *testing.T, text string) {
		a := &app{offset: &zero}
		at, err := a.instant(t.Context(), "at", text)
		if err == nil && math.Abs(float64(at.Year())) > 10_000 {
			t.Fatalf("%q: %v", text, at)
		}
	})
}
