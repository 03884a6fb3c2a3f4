package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// Wrong input names what is wrong and what is allowed, and exits with 2.
func TestGoldenWrongUsage(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, args := range [][]string{
			{"topicks"}, {"nonsense"}, {"schedule", "shwo"}, {"topics", "x"}, {"topics", "-o", "xml"}, {"topics", "--time", "noon"},
			{"topics", "--timeout", "soon"}, {"topics", "--no-such-flag"}, {"topic"}, {"topic", "a", "b"}, {"topic", "bad{}"},
			{"jobs"}, {"jobs", "t", "--state", "asleep"}, {"jobs", "t", "--limit", "0"}, {"jobs", "t", "--attempt", "3"}, {"jobs", "t", "--since", "soon"},
			{"jobs", "t", "--header", "x"}, {"jobs", "t", "--cursor", "x"}, {"jobs", "t", "--budget", "-1"},
			{"job", "t"}, {"job", "t", "base64:%"}, {"job", "t", "nobody"}, {"find"}, {"failures", "t", "--state", "done"}, {"failures", "t", "--budget", "-1"},
			{"server"}, {"undelivered"}, {"undelivered", "a", "b"}, {"undelivered", "bad{}"}, {"undelivered", "t", "-o", "id"}, {"flow", "t"}, {"flow", "bad{}", "x"}, {"flow", "t", "x", "--from", "-1"}, {"audit", "-o", "id"}, {"audit", "--limit", "0"}, {"topic", "t", "--step", "0s"}, {"topic", "t", "--steps", "-1"}, {"topic", "t", "--over", "-1s"},
			{"--redis", "redis://alice:secret@127.0.0.1/", "topics"},
		} {
			r := w.show(args...)
			require.NotZero(w, r.code, args)
			require.Empty(w, r.out, args)
			require.NotContains(w, r.err, "secret")
		}
		w.golden("usage")
	})
}

// Every flag of all commands has a twin in the environment. A flag wins.
func TestEnvironment(t *testing.T) {
	inWorld(t, func(w *world) {
		w.env["DELAYQ_OUTPUT"] = "id"
		require.Equal(w, "order:cancel\n", strings.SplitAfter(w.ok("topics"), "\n")[1])
		require.Contains(w, w.ok("topics", "-o", "table"), "SCHEDULED")
		delete(w.env, "DELAYQ_OUTPUT")

		w.env["DELAYQ_TIME"] = "unix"
		require.Contains(w, w.ok("jobs", "order:cancel"), "946686600.000")
		w.env["DELAYQ_TIME"] = "noon"
		require.Equal(w, exitUsage, w.do("topics").code)
		w.env["DELAYQ_TIME"] = "utc"

		w.env["DELAYQ_TIMEOUT"] = "soon"
		r := w.do("topics")
		require.Equal(w, exitUsage, r.code)
		require.Contains(w, r.err, "DELAYQ_TIMEOUT")
		delete(w.env, "DELAYQ_TIMEOUT")

		w.env["DELAYQ_PREFIX"] = "other"
		require.Empty(w, w.ok("topics"))
	})
}

// Exit codes for what Redis says.
func TestRedisAway(t *testing.T) {
	inWorld(t, func(w *world) {
		w.down = true
		for _, args := range [][]string{{"topics"}, {"jobs", "t"}, {"enqueue", "t"}, {"pause", "t"}, {"limits", "t"}, {"limits", "t", "--none"}, {"hold", "t", "--for", "1s"}, {"schedule", "sync", "-"}, {"export", "t"}} {
			w.stdin = "topics: [t]"
			r := w.do(args...)
			require.Equal(w, exitUnreachable, r.code, "%v: %s", args, r.err)
			require.Contains(w, r.err, "Redis is not reachable", args)
		}
		w.down = false
		w.Redis.SetError("NOPERM this user has no permissions to run the 'evalsha' command")
		require.Equal(w, exitRefused, w.do("enqueue", "t").code)
		w.Redis.SetError("READONLY You can't write against a read only replica.")
		require.Equal(w, exitRefused, w.do("enqueue", "t").code)
		w.Redis.SetError("LOADING Redis is loading the dataset in memory")
		require.Equal(w, exitUnreachable, w.do("topics").code)
		w.Redis.SetError("")
	})
}

// Times are read in several forms. Those without a zone are in local time, and in UTC with --time
// utc.
func TestInstants(t *testing.T) {
	inWorld(t, func(w *world) {
		now := time.Now().Truncate(time.Millisecond)
		a := &app{timeStyle: timeUTC}
		a.setClock(now)
		for text, want := range map[string]time.Time{
			"now": now, "24h": now.Add(-24 * time.Hour), "+1d": now.Add(24 * time.Hour), "1w2d": now.Add(-9 * 24 * time.Hour), "0.5d": now.Add(-12 * time.Hour),
			"@1136214245": time.Unix(1136214245, 0), "@1136214245.5": time.UnixMilli(1136214245500),
			"2006-01-02T15:04:05Z": time.Unix(1136214245, 0), "2006-01-02T16:04:05.25+01:00": time.UnixMilli(1136214245250),
			"2006-01-02 15:04:05": time.Unix(1136214245, 0), "2006-01-02T15:04:05": time.Unix(1136214245, 0),
			"2006-01-02 15:04": time.Unix(1136214240, 0), "2006-01-02": time.Unix(1136160000, 0),
		} {
			got, err := a.instant(w.Context(), "at", text)
			require.NoError(w, err, text)
			require.True(w, want.Equal(got), "%s: %v", text, got)
		}
		for _, text := range []string{"", "soon", "-1h", "2006-13-01", "@x", "+", "++1h"} {
			_, err := a.instant(w.Context(), "at", text)
			require.ErrorContains(w, err, "--at", text)
		}
	})
}

// A duration has at most two units.
func TestSpans(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Microsecond: "1µs", 412 * time.Millisecond: "412ms", 38240 * time.Millisecond: "38.2s", 59999 * time.Millisecond: "59.9s",
		4*time.Minute + 10*time.Second: "4m10s", 3*time.Hour + 2*time.Minute: "3h2m", 76 * time.Hour: "3d4h", -time.Second: "-1s",
		time.Hour - time.Millisecond: "1h", 24*time.Hour - time.Second: "1d", 2 * time.Minute: "2m", 365 * 24 * time.Hour: "365d",
	} {
		require.Equal(t, want, span(d), d)
	}
}

// A word that is shown as a command can be pasted into a shell.
func TestQuoted(t *testing.T) {
	require.Equal(t, "mail:welcome", quoted("mail:welcome"))
	require.Equal(t, `'a b'`, quoted("a b"))
	require.Equal(t, `'it'\''s'`, quoted("it's"))
	require.Equal(t, `''`, quoted(""))
}

// A connection is made from a URL as go-redis reads it. No error has the password in it.
func TestConnections(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	for name, c := range map[string]connection{
		"scheme":       {url: "http://u:s3cret@h"},
		"port":         {url: "redis://u:s3cret@h:port/0"},
		"escape":       {url: "redis://u:s3cret%zz@h/0"},
		"database":     {url: "redis://u:s3cret@h/x"},
		"sentinel":     {url: "redis://u:s3cret@h/x?master_name=m"},
		"cluster":      {url: "redis://u:s3cret@h/x?addr=b&read_timeout=x"},
		"no file":      {url: defaultURL, passwordFile: filepath.Join(dir, "none")},
		"empty file":   {url: defaultURL, passwordFile: write("empty", "\n")},
		"no ca":        {url: defaultURL, ca: filepath.Join(dir, "none")},
		"bad ca":       {url: defaultURL, ca: write("ca", "x")},
		"half a pair":  {url: defaultURL, cert: write("cert", "x")},
		"no pair":      {url: defaultURL, cert: write("cert", "x"), key: write("key", "x")},
		"zero timeout": {url: defaultURL, timeout: -1},
	} {
		if c.timeout == 0 {
			c.timeout = time.Second
		}
		_, err := dial(&c)
		require.Equal(t, exitUsage, codeOf(err), name)
		require.NotContains(t, err.Error(), "s3cret", name)
	}
	for _, address := range []string{
		"redis://h:1/2", "rediss://h", "unix:///tmp/x.sock", "redis://h:1?master_name=m&addr=b:2", "redis://h:1?addr=b:2",
	} {
		rdb, err := dial(&connection{url: address, timeout: time.Second, passwordFile: write("password", "s3cret\n")})
		require.NoError(t, err, address)
		require.NoError(t, rdb.Close())
	}
	for address, want := range map[string]bool{
		"redis://u:p@h": true, "redis://:p@h": true, "redis://u@h": false, "redis://h": false, "redis://h?password=p": true, "redis://u:%zz@h": true,
		"unix:///x": false,
	} {
		require.Equal(t, want, hasPassword(address), address)
	}
}

// A flag that is given and empty is a mistake: in a script, its variable is not set. Nothing is
// done. That holds for every flag of every command, and for arguments.
func TestEmptyFlagsAreMistakes(t *testing.T) {
	inWorld(t, func(w *world) {
		before := redistest.Dump(w.T, w.Redis.Client(), queuetest.Prefix)
		tried := 0
		root := newApp(new(bytes.Buffer)).root()
		walk(root, func(cmd *cobra.Command) {
			if !cmd.Runnable() || cmd.HasSubCommands() {
				return
			}
			var args []string // as many as the command needs
			for n := range 4 {
				if cmd.ValidateArgs(args) == nil {
					break
				}
				args = append(args, []string{"order:cancel", "order-1", "order-2", "order-3"}[n])
			}
			path := strings.Fields(cmd.CommandPath())[1:]
			try := func(flag *pflag.Flag) {
				if flag.Name == "help" {
					return
				}
				tried++
				r := w.do(slices.Concat(path, args, []string{"--" + flag.Name + "="})...)
				code := exitUsage
				if path[0] == checkName {
					code = 3 // UNKNOWN
				}
				require.Equal(w, code, r.code, "%v --%s=: %s", path, flag.Name, r.err)
				require.Contains(w, r.err, flag.Name, path)
				require.Empty(w, r.out, path)
			}
			cmd.Flags().VisitAll(try)
			root.PersistentFlags().VisitAll(try)
			if len(args) > 0 {
				args[len(args)-1] = ""
				require.NotZero(w, w.do(slices.Concat(path, args)...).code, path)
			}
		})
		require.Greater(w, tried, 500)
		for _, name := range []string{"failure", "error", "id-prefix", "key", "payload", "since", "until", "cursor", "attempt", "header"} {
			for _, act := range [][]string{{"purge", "mail:welcome", "--state", "dead"}, {"cancel", "order:cancel", "--state", "scheduled"}, {"revive", "mail:welcome"}} {
				r := w.do(append(act, "--"+name, "", "--yes")...)
				require.Equal(w, exitUsage, r.code, act)
				require.Equal(w, "error: --"+name+" is empty: give it a value, or leave it out\n", r.err)
			}
		}
		require.Equal(w, exitUsage, w.do("relay", "--dsn", "").code)
		require.Equal(w, before, redistest.Dump(w.T, w.Redis.Client(), queuetest.Prefix))
	})
}
