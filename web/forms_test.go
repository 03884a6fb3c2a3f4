package web_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/web"
)

// A shownForm is the form of a page: what its fields hold, what is wrong, and where it goes.
type shownForm struct {
	action   string
	fields   url.Values
	mistakes map[string]string // by field
	banner   string
}

// formOf returns the form of a page that is sent with POST.
func formOf(t *testing.T, body string) (f shownForm) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(body))
	require.NoError(t, err)
	inert(t, "form", root)
	f.fields, f.mistakes = url.Values{}, make(map[string]string)
	var text func(n *html.Node) string
	text = func(n *html.Node) (s string) {
		for c := n.FirstChild; c != nil; c = c.NextSibling {
			if c.Type == html.TextNode {
				s += c.Data
			}
			s += text(c)
		}
		return s
	}
	wrong := make(map[string]bool)
	walk(root, func(n *html.Node) {
		name, _ := attr(n, "name")
		if _, ok := attr(n, "aria-invalid"); ok {
			wrong[name] = true
		}
		switch n.Data {
		case "form":
			if method, _ := attr(n, "method"); method == "post" {
				f.action, _ = attr(n, "action")
			}
		case "input":
			value, set := attr(n, "value")
			if kind, _ := attr(n, "type"); kind == "checkbox" {
				_, set = attr(n, "checked")
			}
			if set {
				f.fields.Add(name, value)
			}
		case "textarea":
			f.fields.Add(name, text(n))
		case "option":
			if _, ok := attr(n, "selected"); ok && n.Parent.Data == "select" {
				name, _ := attr(n.Parent, "name")
				value, _ := attr(n, "value")
				f.fields.Add(name, value)
			}
		case "span":
			if id, _ := attr(n, "id"); strings.HasPrefix(id, "m-") {
				f.mistakes[id[2:]] = text(n)
			}
		case "p":
			if role, _ := attr(n, "role"); role == "alert" {
				if id, _ := attr(n, "id"); id != "lost" {
					f.banner = text(n)
				}
			}
		}
	})
	for name := range f.mistakes {
		require.True(t, wrong[name], "the field %s says so to screen readers", name)
	}
	return f
}

// Each mistake in each form is beside its field, with all that was typed, and nothing is changed.
func TestMistakesAreBesideTheirFields(t *testing.T) {
	q := world(t)
	h := page(t, q, web.Actions(q.Client))
	before := q.Miniredis.Dump()
	all := link("act", "do", "reschedule", "topic", "order:cancel", "state", "scheduled", "all", "1")
	job := url.Values{"topic": {"report"}, "id": {"new<"}, "payload": {"\n[1,\n"}, "retries": {"3"}, "headers": {"a=1\nb=2"}}
	schedule := url.Values{"topic": {"report"}, "name": {"n<"}, "every": {"1h"}, "payload": {"x"}, "format": {"text"}}
	limits := url.Values{"running": {"3"}, "rate": {"90/1h"}, "keyrunning": {"1"}, "keyrate": {"5/1m"}, "ordered": {"1"}}
	with := func(form url.Values, more ...string) url.Values {
		form = maps.Clone(form)
		for i := 0; i < len(more); i += 2 {
			form.Set(more[i], more[i+1])
		}
		return form
	}
	for _, one := range []struct {
		target string
		form   url.Values
		field  string
		code   int
	}{
		{all, url.Values{"in": {"soon"}, "spread": {"1m"}, "most": {"5"}}, "in", 400},
		{all, url.Values{"at": {"late"}, "pace": {"7"}}, "at", 400},
		{all, url.Values{"in": {"1h"}, "at": {"now"}}, "at", 400},
		{all, url.Values{"spread": {"1m"}}, "in", 400},
		{all, url.Values{"in": {"1h"}, "spread": {"wide"}}, "spread", 400},
		{all, url.Values{"in": {"1h"}, "most": {"0"}}, "most", 400},
		{all, url.Values{"in": {"1h"}, "pace": {"fast"}}, "pace", 400},
		{link("act", "do", "cancel", "topic", "order:cancel", "state", "scheduled", "all", "1"), url.Values{"typed": {"orders"}, "pace": {"7"}}, "typed", 400},
		{link("act", "do", "reschedule", "topic", "order:cancel", "state", "scheduled"), url.Values{"ids": {"o-1", "o-2"}, "in": {"-"}}, "in", 400},
		{link("pause", "topic", "report"), url.Values{"for": {"a while"}, "because": {"<b>"}}, "for", 400},
		{link("pause", "topic", "reprot"), url.Values{"because": {"a drill"}}, "new", 400},
		{"/enqueue", with(job, "format", "json"), "payload", 400},
		{"/enqueue", with(job, "format", "base64"), "payload", 400},
		{"/enqueue", with(job, "format", "msgpack"), "payload", 400},
		{"/enqueue", with(job, "format", "copy"), "format", 400},
		{"/enqueue", with(job, "retries", "some"), "retries", 400},
		{"/enqueue", with(job, "headers", "a=1\nb"), "headers", 400},
		{"/enqueue", with(job, "in", "soon"), "in", 400},
		{"/enqueue", with(job, "topic", ""), "topic", 400},
		{"/enqueue", with(job, "topic", "a{b"), "", 400},
		{"/enqueue", with(job, "retries", "-7"), "", 400},
		{"/new-schedule", with(schedule, "every", "hourly"), "every", 400},
		{"/new-schedule", with(schedule, "name", "nightly <b>"), "name", 409},
		{"/new-schedule", with(schedule, "every", "", "cron", "* *"), "", 400},
		{link("edit-schedule", "topic", "report", "name", "nightly <b>", "do", "remove"), url.Values{"typed": {"rep"}}, "typed", 400},
		{link("edit-topic", "topic", "report", "do", "hold"), url.Values{"for": {"0"}, "because": {"quota"}}, "for", 400},
		{link("edit-topic", "topic", "report", "do", "hold"), url.Values{"for": {"1h"}, "because": {strings.Repeat("x", 1025)}}, "", 400},
		{link("edit-topic", "topic", "report", "do", "limits"), with(limits, "running", "1000001"), "running", 400},
		{link("edit-topic", "topic", "report", "do", "limits"), with(limits, "rate", "x"), "rate", 400},
		{link("edit-topic", "topic", "report", "do", "limits"), with(limits, "burst", "91"), "burst", 400},
		{link("edit-topic", "topic", "report", "do", "limits"), with(limits, "keyrunning", "1001"), "keyrunning", 400},
		{link("edit-topic", "topic", "report", "do", "limits"), with(limits, "keyrunning", "2"), "keyrunning", 400},
		{link("edit-topic", "topic", "report", "do", "limits"), with(limits, "keyrate", "5"), "keyrate", 400},
		{link("edit-topic", "topic", "report", "do", "limits"), with(limits, "keyburst", "6"), "keyburst", 400},
		{link("edit-topic", "topic", "report", "do", "limits"), with(limits, "ordered", "", "halt", "1"), "halt", 400},
		{link("edit-key", "topic", "invoice", "key", evilBytes, "do", "limits"), url.Values{"weight": {"x"}, "running": {"2"}, "rate": {"1/1m"}, "strict": {"1"}}, "weight", 400},
		{link("edit-key", "topic", "invoice", "key", evilBytes, "do", "hold"), url.Values{"for": {"NaNd"}}, "for", 400},
		{"/enqueue", with(job, "topic", "order:cancel", "id", "o-1"), "id", 409},
	} {
		w := post(t, h, one.target, one.form)
		require.Equal(t, one.code, w.Code, "%s %v", one.target, one.form)
		f := formOf(t, w.Body.String())
		if one.field == "" {
			require.NotEmpty(t, f.banner, "%s %v", one.target, one.form)
			require.Empty(t, f.mistakes)
		} else {
			require.NotEmpty(t, f.mistakes[one.field], "%s %v: %v %q", one.target, one.form, f.mistakes, f.banner)
			require.Len(t, f.mistakes, 1)
		}
		for name, values := range one.form {
			if values[0] != "" && values[0] != "copy" { // which the form does not offer
				require.Equal(t, values, f.fields[name], "%s: what was typed into %s is kept", one.target, name)
			}
		}
		if one.field != "id" { // a duplicate is found by a call that writes a receipt
			require.Equal(t, before, q.Miniredis.Dump(), "nothing was changed by %s %v", one.target, one.form)
		}

		// What the form shows can be sent again, to the same place.
		if one.field != "format" {
			again := post(t, h, "/"+f.action, f.fields)
			require.Equal(t, one.code, again.Code, "%s: %s", one.target, f.action)
		}
		program := post(t, h, strings.Replace(one.target, "?", ".json?", 1), one.form)
		if strings.Contains(one.target, "?") {
			require.Equal(t, one.code, program.Code)
			require.Contains(t, program.Body.String(), "delayq.web.error/1")
		}
	}
}

// A mistake in a filter leaves the filter as it was typed, and there is no list to act on.
func TestMistakesOfFiltersStay(t *testing.T) {
	q := world(t)
	h := page(t, q, web.Actions(q.Client))
	typed := map[string]string{
		"from": "-1h", "to": "+1h", "prefix": "o-", "key": "k<", "error": "550", "attempt": "2", "header": "a=b", "payload": "p", "columns": "payload, tenant",
	}
	for field, bad := range map[string]string{"from": "yesterday", "to": "x", "attempt": "one", "header": "tenant", "columns": "a,b,c,d,e,f", "rows": "many"} {
		list := []string{"topic", "order:cancel", "state", "scheduled", field, bad}
		for name, value := range typed {
			if name != field {
				list = append(list, name, value)
			}
		}
		w := get(t, h, link("jobs", list...))
		require.Equal(t, http.StatusBadRequest, w.Code, field)
		f := formOf(t, w.Body.String())
		require.Len(t, f.mistakes, 1, field)
		require.NotEmpty(t, f.mistakes[field])
		for name, value := range typed {
			if name != field {
				require.Contains(t, f.fields[name], value, name)
			}
		}
		require.NotContains(t, w.Body.String(), "<tbody>")
		require.NotContains(t, w.Body.String(), "hx-get", "it does not ask for news")
		require.Contains(t, w.Body.String(), `<details class="filters" id="filters" hx-morph-skip open>`)
		require.Contains(t, get(t, h, link("jobs.json", list...)).Body.String(), "delayq.web.error/1")
	}
	for _, pairs := range [][]string{{"from", "+2h", "to", "+1h"}, {"rows", "1001"}, {"attempt", "-1"}, {"state", "asleep"}, {"cursor", "x"}} {
		w := get(t, h, link("jobs", append(pairs, "topic", "order:cancel", "prefix", "o-<")...))
		require.Equal(t, http.StatusBadRequest, w.Code, pairs)
		f := formOf(t, w.Body.String())
		require.NotEmpty(t, f.banner, pairs)
		require.Contains(t, f.fields["prefix"], "o-<")
	}
	require.NotContains(t, get(t, h, link("jobs", "topic", "order:cancel")).Body.String(), "hx-morph-skip open", "it is folded until it is used")
	for _, used := range [][]string{{"prefix", "o"}, {"order", "latest"}, {"rows", "25"}, {"columns", "tenant"}} {
		require.Contains(t, get(t, h, link("jobs", append(used, "topic", "order:cancel")...)).Body.String(), "hx-morph-skip open", used)
	}
}

// A confirmation names the act on both of its buttons, the state, and ten of the jobs.
func TestConfirmationsNameTheAct(t *testing.T) {
	q := delayqtest.Start(t)
	for i := range 25 {
		_, err := q.Client.Enqueue(t.Context(), "many", fmt.Sprintf("id-%02d", i), nil, delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
	}
	h := page(t, q, web.Actions(q.Client))
	text := get(t, h, link("confirm", "do", "cancel", "topic", "many", "state", "scheduled", "all", "1")).Body.String()
	for _, want := range []string{
		">Keep the jobs</a>", ">cancel 25 jobs</button>", `<span class="state scheduled">scheduled</span>`, "This cannot be undone.", "and 15 more", "id-00", "id-09",
	} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "id-10")
	require.NotContains(t, text, ">Back<")
	text = get(t, h, link("confirm", "do", "reschedule", "topic", "many", "state", "scheduled", "id", "id-03")).Body.String()
	require.Contains(t, text, ">Leave the job as it is</a>")
	require.Contains(t, text, ">reschedule 1 job</button>")
	var ids []string
	for i := range 12 {
		ids = append(ids, fmt.Sprintf("id-%02d", i))
	}
	text = post(t, h, link("confirm", "topic", "many", "state", "scheduled"), url.Values{"do": {"cancel"}, "ids": ids}).Body.String()
	require.Contains(t, text, "and 2 more")
	require.Contains(t, text, ">cancel 12 jobs</button>")
}

// copied enqueues what the form of a copy shows, and returns the job.
func copied(t *testing.T, q *delayqtest.TestQueue, h http.Handler, topic, id string, change url.Values) *delayq.JobInfo {
	t.Helper()
	w := get(t, h, link("enqueue", "topic", topic, "copy", id))
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	f := formOf(t, w.Body.String())
	for name, values := range change {
		f.fields[name] = values
	}
	for name, values := range f.fields { // as a browser sends it
		f.fields[name] = []string{strings.ReplaceAll(values[0], "\n", "\r\n")}
	}
	w = post(t, h, "/"+f.action, f.fields)
	require.Equal(t, http.StatusSeeOther, w.Code, w.Body.String())
	u, err := url.Parse(w.Header().Get("Location"))
	require.NoError(t, err)
	info, err := q.Inspector.Job(t.Context(), u.Query().Get("topic"), u.Query().Get("id"))
	require.NoError(t, err)
	return info
}

// A copy has the bytes of the payload, whatever they are, and the settings of the job.
func TestCopiesOfJobs(t *testing.T) {
	q := delayqtest.Start(t)
	h := page(t, q, web.Actions(q.Client))
	for i, payload := range []string{
		"", "plain", `{"a": [1, 2.50, "x"]}`, "line\nline\n", "\nline", "line\r\nline", "\xff\x00", "\x82\xa1a\x01\xa1b\xa1x", "\x81\xa1a\xc4\x01\x00", "\x81\xa1b\xa0",
		strings.Repeat("x", 70_000), evilID, "\x93\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\xc0\xc3", `"` + strings.Repeat("a", 65_530) + `"`,
	} {
		id := fmt.Sprint("id-", i)
		_, err := q.Client.Enqueue(t.Context(), "t", id, []byte(payload), delayq.ProcessIn(time.Hour), delayq.Header("tenant", "4=2"), delayq.Header("b", ""), delayq.Header("c", " \xff\n"),
			delayq.Key("k"), delayq.Retry(3), delayq.Timeout(time.Minute), delayq.Retention(time.Hour), delayq.Backoff(time.Second, time.Minute))
		require.NoError(t, err)
		info := copied(t, q, h, "t", id, nil)
		require.Equal(t, payload, string(info.Payload), "%.20q", payload)
		require.NotEqual(t, id, info.ID)
		require.Equal(t, map[string]string{"tenant": "4=2", "b": "", "c": " \xff\n"}, info.Headers)
		require.Equal(t, "k", info.Key)
		require.Equal(t, 3, info.Retries)
		require.Equal(t, []time.Duration{time.Minute, time.Hour, time.Second, time.Minute}, []time.Duration{info.Timeout, info.Retention, info.BackoffFirst, info.BackoffLimit})
		require.Equal(t, delayq.StateReady, info.State, "it is due now")
	}
	_, err := q.Client.Enqueue(t.Context(), "t", "bare", []byte("{}"), delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	info := copied(t, q, h, "t", "bare", url.Values{"payload": {`{"edited":1}`}, "topic": {"other"}, "id": {"new"}, "in": {"2h"}, "headers": {"x=y"}})
	require.Equal(t, `{"edited":1}`, string(info.Payload))
	require.Equal(t, []string{"other", "new"}, []string{info.Topic, info.ID})
	require.Equal(t, -1, info.Retries)
	require.Equal(t, http.StatusNotFound, get(t, h, link("enqueue", "topic", "t", "copy", "nobody")).Code)
	require.Contains(t, get(t, h, link("job", "topic", "t", "id", "bare")).Body.String(), `href="enqueue?copy=bare&amp;topic=t">copy…`)
}

// A job that is done runs again with the same ID.
func TestRunAgain(t *testing.T) {
	q := world(t)
	h := page(t, q, web.Actions(q.Client))
	require.Contains(t, get(t, h, link("job", "topic", "report", "id", "done-1")).Body.String(), ">run again…</a>")
	info := copied(t, q, h, "report", "done-1", nil)
	require.Equal(t, "done-1", info.ID)
	require.Equal(t, delayq.StateReady, info.State)
	require.NotContains(t, get(t, page(t, q), link("job", "topic", "report", "id", "done-1")).Body.String(), "run again")
}

// Who may enqueue and not see payloads can copy a job within its topic, and nowhere else.
func TestCopiesOfWhatIsHidden(t *testing.T) {
	q := delayqtest.Start(t)
	_, err := q.Client.Enqueue(t.Context(), "t", "one", []byte(`{"card":"4111"}`), delayq.ProcessIn(time.Hour), delayq.Header("tenant", "secret"), delayq.Header("odd", "secret\n"))
	require.NoError(t, err)
	for name, opt := range map[string]web.Option{
		"redacted": web.Payload("*", web.Redact("card")),
		"refused": web.Authorize(func(_ *http.Request, right web.Right, _ string) error {
			if right == web.RightPayload {
				return errors.New("no")
			}
			return nil
		}),
	} {
		h := page(t, q, web.Actions(q.Client), opt)
		form := get(t, h, link("enqueue", "topic", "t", "copy", "one")).Body.String()
		require.NotContains(t, form, "4111", name)
		require.NotContains(t, form, "secret", name)
		info := copied(t, q, h, "t", "one", nil)
		require.Equal(t, `{"card":"4111"}`, string(info.Payload))
		require.Equal(t, map[string]string{"tenant": "secret", "odd": "secret\n"}, info.Headers)
		w := post(t, h, link("enqueue", "topic", "t", "copy", "one"), url.Values{"topic": {"open"}, "id": {name}, "payload": {"mine"}})
		require.Equal(t, http.StatusSeeOther, w.Code)
		other, err := q.Inspector.Job(t.Context(), "open", name)
		require.NoError(t, err)
		require.Empty(t, other.Headers, "they could be seen there")
		w = post(t, h, link("enqueue", "topic", "t", "copy", "one"), url.Values{"topic": {"open"}, "format": {"copy"}})
		require.Equal(t, http.StatusBadRequest, w.Code)
		require.NotEmpty(t, formOf(t, w.Body.String()).mistakes["topic"])
		_, err = q.Client.Dequeue(t.Context(), "t", info.ID)
		require.NoError(t, err)
	}
}

// The limits of a topic are in their form, so sending it as it is changes nothing.
func TestLimitsOfATopic(t *testing.T) {
	q := world(t)
	h := page(t, q, web.Actions(q.Client), web.Actor(alice))
	target := link("edit-topic", "topic", "invoice", "do", "limits")
	limits := func() delayq.Limits {
		stats, err := q.Inspector.Stats(t.Context(), "invoice")
		require.NoError(t, err)
		return stats[0].Limits
	}
	for _, want := range []delayq.Limits{
		{}, {Running: 5}, {Rate: delayq.Per(100, time.Minute).Burst(3).Strict()}, {RunningPerKey: 2, RatePerKey: delayq.Per(20, time.Hour)},
		{Running: 1_000_000, Ordered: true, OnDead: delayq.HaltKey, RunningPerKey: 1, Rate: delayq.Per(1, time.Second), RatePerKey: delayq.Per(9, 26*time.Hour).Burst(2)},
		{Ordered: true, RunningPerKey: 1},
	} {
		require.NoError(t, q.Client.SetLimits(t.Context(), "invoice", want))
		f := formOf(t, get(t, page(t, q, web.Actions(q.Client)), target).Body.String())
		require.NoError(t, q.Client.SetLimits(t.Context(), "invoice", delayq.Limits{Running: 77}))
		w := post(t, h, "/"+f.action, f.fields)
		require.Equal(t, http.StatusSeeOther, w.Code, w.Body.String())
		require.Equal(t, want, limits(), f.fields)
		require.Contains(t, get(t, h, "/"+w.Header().Get("Location")).Body.String(), "The limits of the topic are set.")
	}
	require.Contains(t, get(t, h, link("topic", "topic", "invoice")).Body.String(), "<dt>in order</dt>")

	hold := post(t, h, link("edit-topic", "topic", "invoice", "do", "hold"), url.Values{"for": {"2h"}, "because": {"quota <b>"}})
	require.Equal(t, http.StatusSeeOther, hold.Code)
	stats, err := q.Inspector.Stats(t.Context(), "invoice")
	require.NoError(t, err)
	require.WithinDuration(t, q.Now().Add(2*time.Hour), stats[0].HeldUntil, time.Minute)
	require.Equal(t, []string{"alice", "quota <b>"}, []string{stats[0].HeldBy, stats[0].HeldReason})
	text := get(t, h, link("topic", "topic", "invoice")).Body.String()
	require.Contains(t, text, "do=release")
	require.Equal(t, http.StatusSeeOther, post(t, h, link("edit-topic", "topic", "invoice", "do", "release"), nil).Code)
	stats, err = q.Inspector.Stats(t.Context(), "invoice")
	require.NoError(t, err)
	require.Zero(t, stats[0].HeldUntil)
	require.NotContains(t, get(t, h, link("topic", "topic", "invoice")).Body.String(), "do=release")
	require.Equal(t, http.StatusNotFound, post(t, h, link("edit-topic", "topic", "invoice", "do", "explode"), nil).Code)
	require.Equal(t, http.StatusNotFound, post(t, h, link("edit-topic", "topic", "none", "do", "hold"), url.Values{"for": {"1h"}}).Code)
}

// A key whose jobs run in order says which job the others wait for.
func TestKeysSayWhichJobTheyWaitFor(t *testing.T) {
	for _, halted := range []bool{true, false} {
		t.Run(fmt.Sprint(halted), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := delayqtest.Start(t)
				ctx := t.Context()
				limits := delayq.Limits{Ordered: true}
				result := errors.New("not now")
				if halted {
					limits.OnDead, result = delayq.HaltKey, delayq.Permanent(result)
				}
				require.NoError(t, q.Client.SetLimits(ctx, "t", limits))
				for _, id := range []string{"first <b>", "second"} {
					_, err := q.Client.Enqueue(ctx, "t", id, nil, delayq.Key("k"), delayq.Backoff(time.Hour, time.Hour))
					require.NoError(t, err)
				}
				stop := q.Serve(func(s *delayq.Server) {
					s.HandlerFunc("t", func(context.Context, *delayq.Job) error { return result })
				})
				q.Unfreeze()
				time.Sleep(5 * time.Second)
				synctest.Wait()
				h := page(t, q)
				var k struct {
					WaitsFor   string    `json:"waits_for"`
					WaitsUntil time.Time `json:"waits_until"`
				}
				require.NoError(t, json.Unmarshal(get(t, h, link("key.json", "topic", "t", "key", "k")).Body.Bytes(), &k))
				require.Equal(t, "first <b>", k.WaitsFor)
				require.Equal(t, halted, k.WaitsUntil.IsZero())
				text := get(t, h, link("key", "topic", "t", "key", "k")).Body.String()
				require.Contains(t, text, `href="job?id=first&#43;%3Cb%3E&amp;topic=t">first &lt;b&gt;</a>`)
				require.Contains(t, text, "<dt>Waits for</dt>")
				stop()
			})
		})
	}
}

// A topic that has nothing yet has a page. To pause it has to be confirmed: it can be a typo.
func TestNewTopics(t *testing.T) {
	q := world(t)
	h := page(t, q, web.Actions(q.Client))
	before := q.Miniredis.Dump()
	for _, target := range []string{link("topic", "topic", "reprot"), link("jobs", "topic", "reprot")} {
		w := get(t, h, target)
		require.Equal(t, http.StatusOK, w.Code)
		require.Contains(t, w.Body.String(), "There is no topic reprot yet.")
	}
	require.Contains(t, get(t, h, link("topic", "topic", "reprot")).Body.String(), `href="enqueue?topic=reprot"`)
	require.Equal(t, http.StatusBadRequest, post(t, h, link("pause", "topic", "reprot"), nil).Code)
	require.Equal(t, http.StatusNotFound, post(t, h, link("resume", "topic", "reprot"), nil).Code)
	require.Equal(t, before, q.Miniredis.Dump())
	require.NotContains(t, get(t, h, link("pause", "topic", "report")).Body.String(), `name="new"`)

	w := post(t, h, link("pause", "topic", "reprot"), url.Values{"new": {"1"}})
	require.Equal(t, http.StatusSeeOther, w.Code)
	shown := get(t, h, "/"+w.Header().Get("Location"))
	require.Equal(t, http.StatusOK, shown.Code)
	require.Contains(t, shown.Body.String(), "The topic is paused.")
	require.NotContains(t, shown.Body.String(), "There is no topic")
	require.Contains(t, shown.Body.String(), `action="resume?topic=reprot"`)
	require.Equal(t, http.StatusSeeOther, post(t, h, link("resume", "topic", "reprot"), nil).Code)
	stats, err := q.Inspector.Stats(t.Context(), "reprot")
	require.NoError(t, err)
	require.False(t, stats[0].Paused)

	w = post(t, h, "/enqueue", url.Values{"topic": {"fresh"}, "id": {"one"}, "in": {"1h"}})
	require.Equal(t, http.StatusSeeOther, w.Code)
	require.NotContains(t, get(t, h, link("topic", "topic", "fresh")).Body.String(), "There is no topic")
	require.Equal(t, http.StatusBadRequest, get(t, h, link("topic", "topic", "a{b")).Code)
}

// Jobs that have never run say so in place of the number of the attempt to come.
func TestNotStartedYet(t *testing.T) {
	q := world(t)
	require.NoError(t, q.Client.Bury(t.Context(), "order:cancel", "o-4", "a trap"))
	_, err := q.Client.Enqueue(t.Context(), "later", "snoozed", nil)
	require.NoError(t, err)
	stop := q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("later", func(context.Context, *delayq.Job) error { return delayq.Snooze(time.Hour) })
	})
	q.Advance(time.Second)
	stop()
	h := page(t, q)
	const none = "not started yet"
	for _, one := range []struct {
		topic, id string
		state     delayq.State
		started   bool
	}{
		{"order:cancel", "o-1", delayq.StateScheduled, false}, {"order:cancel", "o-4", delayq.StateDead, false},
		{"refund <b>/poll", "r-1", delayq.StateReady, false}, {"mail:welcome", "u-1", delayq.StateDead, true}, {"later", "snoozed", delayq.StateScheduled, true}, {"report", "done-1", delayq.StateDone, true},
	} {
		require.Equal(t, !one.started, strings.Contains(get(t, h, link("job", "topic", one.topic, "id", one.id)).Body.String(), none), one.id)
		require.Equal(t, !one.started, strings.Contains(get(t, h, link("jobs", "topic", one.topic, "state", string(one.state))).Body.String(), none), one.id)
	}
}

// Lists have columns of payloads and headers, for those who may see them.
func TestColumns(t *testing.T) {
	q := delayqtest.Start(t)
	for i, payload := range []string{`{"user":  "ann", "n": 1}`, "\x81\xa1a\x01", "", strings.Repeat("long ", 100), strings.Repeat("x", 70_000)} {
		_, err := q.Client.Enqueue(t.Context(), "t", fmt.Sprint(i), []byte(payload), delayq.ProcessIn(time.Hour), delayq.Header("tenant", fmt.Sprint("of ", i)), delayq.Header("payload", "named so"))
		require.NoError(t, err)
	}
	list := func(h http.Handler, columns string, more ...string) (code int, rows []map[string]string) {
		var p struct {
			Jobs []struct {
				ID      string
				Columns map[string]string
			}
		}
		w := get(t, h, link("jobs.json", append(more, "topic", "t", "columns", columns)...))
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		rows = make([]map[string]string, len(p.Jobs))
		for _, j := range p.Jobs {
			rows[j.ID[0]-'0'] = j.Columns
		}
		return w.Code, rows
	}
	h := page(t, q)
	code, rows := list(h, " payload, tenant,header:payload, none,tenant")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, map[string]string{"payload": `{"user": "ann", "n": 1}`, "tenant": "of 0", "header:payload": "named so"}, rows[0])
	require.Equal(t, `{ "a": 1 }`, rows[1]["payload"])
	require.Empty(t, rows[2]["payload"])
	require.Equal(t, strings.Repeat("long ", 24)[:119]+"…", rows[3]["payload"])
	require.NotContains(t, rows[3], "none")
	require.Empty(t, rows[4]["payload"], "it is too long to be read for a list")
	text := get(t, h, link("jobs", "topic", "t", "columns", "payload,tenant")).Body.String()
	require.Contains(t, text, `<th scope="col">Payload</th><th scope="col" class="mono">tenant</th>`)
	require.Contains(t, text, `<td class="extra" data-label="tenant"><span class="mono">of 0</span></td>`)
	code, _ = list(h, "payload", "rows", "101")
	require.Equal(t, http.StatusBadRequest, code)
	code, _ = list(h, "payload", "rows", "100")
	require.Equal(t, http.StatusOK, code)
	code, _ = list(h, "tenant", "rows", "1000")
	require.Equal(t, http.StatusOK, code)
	for name, opt := range map[string]web.Option{
		"redacted": web.Payload("*", web.Redact("user")),
		"refused": web.Authorize(func(_ *http.Request, right web.Right, _ string) error {
			if right == web.RightPayload {
				return errors.New("no")
			}
			return nil
		}),
	} {
		h := page(t, q, opt)
		for _, columns := range []string{"payload", "tenant"} {
			code, rows = list(h, columns)
			require.Equal(t, http.StatusForbidden, code, name)
			require.Empty(t, rows)
		}
		require.NotContains(t, get(t, h, link("jobs", "topic", "t")).Body.String(), `name="columns"`)
	}
}

// At most four bulk runs are under way. One that has ended leaves room, and the pages have the new
// numbers at once.
func TestBulkRunsAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delayqtest.Start(t)
		for i := range 100 {
			_, err := q.Client.Enqueue(t.Context(), "many", fmt.Sprint(i), nil, delayq.ProcessIn(time.Hour))
			require.NoError(t, err)
		}
		h := page(t, q, web.Actions(q.Client), web.Actor(alice), web.Every(time.Hour))
		scheduled := func() (n int) {
			var p struct{ Totals struct{ Scheduled int } }
			require.NoError(t, json.Unmarshal(get(t, h, "/topics.json").Body.Bytes(), &p))
			return p.Totals.Scheduled
		}
		start := func(form url.Values) int {
			form.Set("typed", "many")
			return post(t, h, link("act", "do", "cancel", "topic", "many", "state", "scheduled", "all", "1"), form).Code
		}
		require.Equal(t, 100, scheduled())
		require.Equal(t, http.StatusSeeOther, start(url.Values{"most": {"10"}}))
		synctest.Wait()
		require.Equal(t, 90, scheduled(), "though what was read could be an hour old")
		for range 4 {
			require.Equal(t, http.StatusSeeOther, start(url.Values{"pace": {"1"}}))
		}
		require.Equal(t, http.StatusTooManyRequests, start(url.Values{"pace": {"1"}}))
		require.Equal(t, http.StatusSeeOther, post(t, h, "/stop?run=3", nil).Code)
		synctest.Wait()
		require.Contains(t, get(t, h, "/bulk?run=3").Body.String(), "stopped · alice")
		require.Equal(t, http.StatusSeeOther, start(url.Values{"pace": {"1"}}))
		require.Equal(t, http.StatusTooManyRequests, start(url.Values{"pace": {"1"}}))
	})
}
