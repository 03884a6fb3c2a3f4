package web_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/web"
)

var update = flag.Bool("update", false, "write the golden files")

// The pages of the world, by the names of their golden files.
var goldenPages = map[string]string{
	"topics":    "/topics",
	"topic":     link("topic", "topic", "order:cancel"),
	"late":      link("topic", "topic", "report"),
	"scheduled": link("jobs", "topic", "order:cancel", "state", "scheduled"),
	"filtered":  link("jobs", "topic", "mail:welcome", "state", "dead", "error", "550", "rows", "25"),
	"job":       link("job", "topic", "mail:welcome", "id", evilID),
	"waiting":   link("job", "topic", "order:cancel", "id", "o-1"),
	"nojob":     link("job", "topic", "order:cancel", "id", "none"),
	"done":      link("job", "topic", "report", "id", "done-1"),
	"keys":      link("keys", "topic", "invoice"),
	"keyed":     link("jobs", "topic", "invoice", "state", "ready", "key", "t-1"),
	"key":       link("key", "topic", "invoice", "key", evilBytes),
	"keylimits": link("edit-key", "topic", "invoice", "key", "t-1", "do", "limits"),
	"keyhold":   link("edit-key", "topic", "invoice", "key", evilBytes, "do", "hold"),
	"failures":  "/failures",
	"servers":   "/servers",
	"schedules": "/schedules",
	"schedule":  link("schedule", "topic", "report", "name", "nightly <b>"),
	"audit":     "/audit",
	"help":      "/help",
	"find":      link("find", "id", evilID),
	"confirm":   link("confirm", "do", "purge", "topic", "mail:welcome", "state", "dead", "all", "1"),
	"pause":     link("pause", "topic", "report"),
	"enqueue":   "/enqueue",
	"newsched":  "/new-schedule",
	"remove":    link("edit-schedule", "topic", "report", "name", "nightly <b>", "do", "remove"),
}

// changing is what differs between runs. A server's estimate of Redis's clock, with which it dates
// errors, can be a millisecond ahead.
var changing = regexp.MustCompile(`-[0-9a-f]{12}\.|seen=[0-9a-f]{16}|\b[A-Z2-7]{26}\b|>([0-9.]+(µs|ms)|0s)<|\(\) · [\d.]+(µs|ms)|00:00:00\.00[01]( UTC|Z)|seconds":[0-9.e-]+`)

func TestGoldenPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := world(t)
		h := page(t, q, web.Actions(q.Client), web.Badge("production"))
		for name, target := range goldenPages {
			golden(t, h, name, target)
		}
	})
}

// golden compares a page with its golden files.
func golden(t *testing.T, h http.Handler, name, target string) {
	t.Helper()
	for _, lang := range []string{"en", "zh-CN"} {
		w := get(t, h, target, func(r *http.Request) { r.Header.Set("Accept-Language", lang) })
		file := filepath.Join("testdata", name+"."+lang+".html")
		got := changing.ReplaceAllString(w.Body.String(), "<!-- changes -->")
		if *update {
			require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), got, "%s: if this is right, run go test -run TestGoldenPages -update", file)
		root, err := html.Parse(strings.NewReader(w.Body.String()))
		require.NoError(t, err)
		inert(t, name, root)
	}
}

func TestJSONOfEveryPage(t *testing.T) {
	q := world(t)
	h := page(t, q)
	for _, target := range []string{
		"topics", link("topic", "topic", "report"), link("jobs", "topic", "order:cancel"), link("job", "topic", "report", "id", "done-1"),
		link("find", "id", "o-1"), link("keys", "topic", "invoice"), link("key", "topic", "invoice", "key", evilBytes), "failures", "servers", "schedules", link("schedule", "topic", "report", "name", "nightly <b>"), "audit", "redis", "help",
	} {
		name, query, _ := strings.Cut(strings.TrimPrefix(target, "/"), "?")
		w := get(t, h, "/"+name+".json?"+query)
		require.Equal(t, http.StatusOK, w.Code, name)
		require.Equal(t, "application/json; charset=utf-8", w.Header().Get("Content-Type"))
		var answer struct{ Schema string }
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
		require.Equal(t, "delayq.web."+name+"/1", answer.Schema)
	}
	w := get(t, h, "/job.json?topic=nope")
	require.Equal(t, http.StatusNotFound, w.Code)
	require.Contains(t, w.Body.String(), `"job":null`)
}

func TestJobsPageByPage(t *testing.T) {
	q := world(t)
	h := page(t, q)
	seen := make(map[string]int)
	target := link("jobs.json", "topic", "order:cancel", "state", "scheduled", "rows", "2", "from", "-1h", "to", "+2h")
	for target != "" {
		w := get(t, h, target)
		require.Equal(t, http.StatusOK, w.Code, w.Body.String())
		var p struct {
			Jobs []struct{ ID string }
			Next string
		}
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		for _, j := range p.Jobs {
			seen[j.ID]++
		}
		shown := strings.Replace(target, ".json", "", 1)
		target = ""
		root, err := html.Parse(strings.NewReader(get(t, h, shown).Body.String()))
		require.NoError(t, err)
		walk(root, func(n *html.Node) {
			if rel, _ := attr(n, "rel"); rel == "next" {
				target, _ = attr(n, "href")
				target = "/" + strings.Replace(target, "jobs?", "jobs.json?", 1)
			}
		})
	}
	require.Len(t, seen, 5)
	for id, n := range seen {
		require.Equal(t, 1, n, id)
	}
}

func TestSecurityHeaders(t *testing.T) {
	q := world(t)
	h := page(t, q)
	for _, target := range []string{"/", "/nothing", link("payload", "topic", "report", "id", "done-1"), "/topics.json"} {
		head := get(t, h, target).Header()
		require.Equal(t, "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "+
			"form-action 'self'; base-uri 'none'; frame-ancestors 'none'", head.Get("Content-Security-Policy"))
		require.Equal(t, "nosniff", head.Get("X-Content-Type-Options"))
		require.Equal(t, "no-referrer", head.Get("Referrer-Policy"))
		require.Equal(t, "no-store", head.Get("Cache-Control"))
	}
}

func TestReadOnlyHasNothingToWriteWith(t *testing.T) {
	q := world(t)
	h := page(t, q)
	for _, target := range goldenPages {
		root, err := html.Parse(strings.NewReader(get(t, h, target).Body.String()))
		require.NoError(t, err)
		walk(root, func(n *html.Node) {
			method, _ := attr(n, "method")
			require.False(t, n.Data == "form" && strings.EqualFold(method, "post"), target)
		})
	}
	before := q.Miniredis.Dump()
	for _, name := range []string{"act", "confirm", "pause", "resume", "enqueue", "new-schedule", "edit-schedule", "edit-key", "key", "stop", "topics", "nothing"} {
		w := post(t, h, "/"+name+"?topic=order:cancel&do=cancel&id=o-1&key=k", url.Values{"typed": {"order:cancel"}, "topic": {"order:cancel"}})
		require.Equal(t, http.StatusMethodNotAllowed, w.Code, name)
		require.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
	}
	require.Equal(t, before, q.Miniredis.Dump())
}

// The schedule of a task says what a worker does.
func TestTasksSayWhatTheyDo(t *testing.T) {
	q := world(t)
	h := page(t, q)
	require.NoError(t, q.Client.Schedule(t.Context(), "report", "clean", delayq.Every(time.Hour), nil, delayq.Header("task", "sql clean-<zombies>")))
	for _, target := range []string{"/schedules", link("schedule", "topic", "report", "name", "clean")} {
		require.Contains(t, get(t, h, target).Body.String(), "sql clean-&lt;zombies&gt;", target)
	}
	require.Contains(t, get(t, h, "/schedules.json").Body.String(), `"task":"sql clean-\u003czombies\u003e"`)
}

func TestHiddenTopicsAreNowhere(t *testing.T) {
	q := world(t)
	h := page(t, q, web.Actions(q.Client), web.Visible(func(_ *http.Request, topic string) bool { return topic != "mail:welcome" }))
	for name, target := range goldenPages {
		w := get(t, h, target)
		require.NotContains(t, w.Body.String(), "mail:welcome", name)
		if u, err := url.Parse(target); err == nil && u.Query().Get("topic") == "mail:welcome" {
			require.Equal(t, http.StatusNotFound, w.Code, name)
		}
	}
	require.Equal(t, http.StatusNotFound, post(t, h, link("act", "do", "purge", "topic", "mail:welcome", "id", "u-1", "state", "dead"), nil).Code)
	require.Equal(t, http.StatusNotFound, post(t, h, "/enqueue", url.Values{"topic": {"mail:welcome"}}).Code)
	require.Contains(t, get(t, h, "/topics.json").Body.String(), `"dead":0`, "hidden jobs are not counted")
}

func TestAuthorizeDecides(t *testing.T) {
	q := world(t)
	allowed := map[web.Right]bool{}
	h := page(t, q, web.Actions(q.Client), web.Authorize(func(_ *http.Request, right web.Right, _ string) error {
		if !allowed[right] {
			return errors.New("not you: " + string(right))
		}
		return nil
	}))
	w := get(t, h, "/")
	require.Equal(t, http.StatusForbidden, w.Code)
	require.Contains(t, w.Body.String(), "not you: view")
	allowed[web.RightView] = true
	job := link("job", "topic", "report", "id", "done-1")
	require.Equal(t, http.StatusOK, get(t, h, job).Code)
	for _, secret := range []string{"plain", "tenant", "purge"} {
		require.NotContains(t, get(t, h, job).Body.String(), secret)
		require.NotContains(t, get(t, h, strings.Replace(job, "job", "job.json", 1)).Body.String(), secret)
	}
	require.Equal(t, http.StatusForbidden, get(t, h, link("payload", "topic", "report", "id", "done-1")).Code)
	require.Equal(t, http.StatusForbidden, get(t, h, link("jobs", "topic", "report", "state", "done", "payload", "p")).Code)
	require.Equal(t, http.StatusForbidden, get(t, h, link("jobs", "topic", "report", "state", "done", "header", "tenant=42")).Code)
	for _, do := range []string{"run", "reschedule", "revive", "bury", "cancel", "purge"} {
		require.Equal(t, http.StatusForbidden, post(t, h, link("act", "do", do, "topic", "order:cancel", "id", "o-1"), nil).Code, do)
	}
	for _, name := range []string{"pause", "resume", "enqueue", "new-schedule", "edit-schedule"} {
		require.Equal(t, http.StatusForbidden, post(t, h, link(name, "topic", "order:cancel"), url.Values{"topic": {"order:cancel"}}).Code, name)
	}
	allowed[web.RightPayload] = true
	require.Contains(t, get(t, h, job).Body.String(), "plain")
}

func TestRedactedFieldsAreNowhere(t *testing.T) {
	q := world(t)
	h := page(t, q, web.Payload("*", web.Redact("EMAIL")))
	for _, one := range [][2]string{{"mail:welcome", "u-1"}, {"order:cancel", "o-1"}, {"report", "done-1"}} {
		for _, name := range []string{"job", "job.json"} {
			for _, show := range []string{"", "raw", "hex"} {
				text := get(t, h, link(name, "topic", one[0], "id", one[1], "show", show)).Body.String()
				for _, secret := range []string{"example.com", "a@b", "plain", "61 40 62", "tenant"} {
					require.NotContains(t, text, secret)
				}
			}
		}
		require.Equal(t, http.StatusForbidden, get(t, h, link("payload", "topic", one[0], "id", one[1])).Code)
		require.Equal(t, http.StatusForbidden, get(t, h, link("jobs", "topic", one[0], "payload", "a")).Code)
	}
	require.Contains(t, get(t, h, link("job", "topic", "mail:welcome", "id", "u-1")).Body.String(), "12345678901234567890", "numbers keep their digits")
}

// What a handler has attached to a run is on the page of the job and of its schedule, for those who
// may see payloads.
func TestOutputOfRuns(t *testing.T) {
	q := world(t)
	require.NoError(t, q.Client.Schedule(t.Context(), "report", "often", delayq.Every(time.Second), nil, delayq.MaxRuns(1)))
	q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("report", func(_ context.Context, job *delayq.Job) error {
			return job.SetOutput([]byte("3 plain rows\n<b>\x1b[0m\xff\n"))
		})
	})
	q.Advance(2 * time.Second)
	job, schedule := link("job", "topic", "report", "id", "done-1"), link("schedule", "topic", "report", "name", "often")
	const text = "3 plain rows\n&lt;b&gt;\\x1b[0m\\xff</pre>"
	h := page(t, q)
	require.Contains(t, get(t, h, job).Body.String(), text)
	require.Contains(t, get(t, h, schedule).Body.String(), text)
	var shown struct {
		Runs []struct{ Output struct{ Text string } }
	}
	require.NoError(t, json.Unmarshal(get(t, h, link("schedule.json", "topic", "report", "name", "often")).Body.Bytes(), &shown))
	require.Equal(t, "3 plain rows\n<b>\\x1b[0m\\xff", shown.Runs[0].Output.Text)
	for _, opt := range []web.Option{
		web.Payload("*", web.Redact("x")),
		web.Authorize(func(_ *http.Request, r web.Right, _ string) error {
			if r == web.RightPayload {
				return errors.New("no")
			}
			return nil
		}),
	} {
		h := page(t, q, opt, web.Links(func(j *delayq.JobInfo) []web.Link {
			require.Empty(t, j.Output())
			return []web.Link{{Text: "log of " + j.ID, URL: "https://logs.example"}}
		}))
		require.Contains(t, get(t, h, job).Body.String(), "log of done-1")
		require.NotContains(t, get(t, h, job).Body.String(), "plain rows")
		require.NotContains(t, get(t, h, schedule).Body.String(), "plain rows")
	}
}

func TestRedisAway(t *testing.T) {
	q := world(t)
	h := page(t, q)
	q.Miniredis.SetError("NOPERM secret address 10.0.0.1")
	w := get(t, h, "/topics")
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Contains(t, w.Body.String(), "Redis refuses: NOPERM.")
	require.NotContains(t, w.Body.String(), "10.0.0.1")
	q.Miniredis.SetError("")
}

func TestLanguageAndTheme(t *testing.T) {
	q := world(t)
	h := page(t, q)
	w := get(t, h, "/a/b/topics?lang=zh-CN&theme=dark")
	require.Contains(t, w.Body.String(), `<html lang="zh-CN" data-theme="dark">`)
	require.Contains(t, w.Body.String(), "主题")
	for _, c := range w.Result().Cookies() {
		require.Empty(t, c.Path, "the cookie is for the directory of the page")
		require.True(t, c.HttpOnly)
	}
	kept := get(t, h, "/topics", func(r *http.Request) {
		for _, c := range w.Result().Cookies() {
			r.AddCookie(c)
		}
	})
	require.Contains(t, kept.Body.String(), `<html lang="zh-CN" data-theme="dark">`)
	require.Contains(t, get(t, h, "/topics?lang=xx&theme=%22").Body.String(), `<html lang="en">`)
}

func TestInvalidOptions(t *testing.T) {
	q := world(t)
	for name, opts := range map[string][]web.Option{
		"nil option": {nil}, "Actions": {web.Actions(nil)}, "Authorize": {web.Authorize(nil)}, "Actor": {web.Actor(nil)},
		"Visible": {web.Visible(nil)}, "Links": {web.Links(nil)}, "Badge": {web.Badge(strings.Repeat("x", 41))},
		"Language": {web.Language("de")}, "Every": {web.Every(1)}, "TrustedOrigin": {web.TrustedOrigin("nonsense")},
		"pattern": {web.Payload("[", web.JSON)}, "decoder": {web.Payload("a", web.Decoder{})}, "redacted text": {web.Payload("a", web.Redact("x"), web.Text)},
	} {
		_, err := web.New(q.Inspector, opts...)
		require.ErrorIs(t, err, delayq.ErrInvalid, name)
	}
	_, err := web.New(nil)
	require.ErrorIs(t, err, delayq.ErrInvalid)
}

func TestBarePrefixRedirects(t *testing.T) {
	q := world(t)
	h := http.StripPrefix("/admin/q", page(t, q))
	w := get(t, h, "/admin/q?x=1")
	require.Equal(t, http.StatusMovedPermanently, w.Code)
	require.Equal(t, "./q/", w.Header().Get("Location"))
}

// Whatever an ID, a payload, an error or a parameter holds, it is text.
func FuzzTextStaysText(f *testing.F) {
	q := world(f)
	h := page(f, q, web.Actions(q.Client))
	for _, seed := range []string{evilID, evilBytes, "", "</pre><script>", "javascript:alert(1)", "\u202e", "{{.}}", "&lt;b&gt;", `{"a":"<b>"}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1000 {
			return
		}
		id := "f" + text
		_, err := q.Client.Enqueue(t.Context(), "fuzz", id, []byte(text), delayq.ProcessIn(1e12), delayq.Replace())
		require.NoError(t, err)
		for _, target := range []string{
			link("job", "topic", "fuzz", "id", id), link("job", "topic", "fuzz", "id", id, "show", "raw"), link("jobs", "topic", "fuzz", "prefix", id),
			link("find", "id", text), link("topic", "topic", text), link("jobs", "topic", "fuzz", "from", text), link("topics", "did", text, "n", text),
			link("confirm", "do", "cancel", "topic", "fuzz", "id", id), link("key", "topic", "fuzz", "key", text),
			link("edit-key", "topic", "fuzz", "key", text, "do", "limits"), link("edit-key", "topic", "fuzz", "key", id, "do", text), link(url.PathEscape(text), "x", text),
		} {
			w := get(t, h, target)
			require.Less(t, w.Code, http.StatusInternalServerError, target)
			if strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
				root, err := html.Parse(strings.NewReader(w.Body.String()))
				require.NoError(t, err)
				inert(t, target, root)
			}
		}
		_, err = q.Client.Dequeue(t.Context(), "fuzz", id)
		require.NoError(t, err)
	})
}
