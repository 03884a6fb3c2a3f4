package web_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
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

type keyAnswer struct {
	Ready, Keyed int64
	Keys         []struct {
		Key       string
		KeyBase64 string `json:"key_base64"`
		Waiting   int64
		Weight    int
		First     string
		Paused    bool
		HeldUntil time.Time `json:"held_until"`
	}
	Next string
}

func askKeys(t *testing.T, h http.Handler, target string) (p keyAnswer) {
	t.Helper()
	w := get(t, h, target)
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
	return p
}

// A list without filters goes to a page by its number.
func TestJobsPageByNumber(t *testing.T) {
	h := page(t, world(t))
	ask := func(pairs ...string) (ids []string) {
		var answer struct{ Jobs []struct{ ID string } }
		w := get(t, h, link("jobs.json", append([]string{"topic", "order:cancel", "state", "scheduled"}, pairs...)...))
		require.Equal(t, http.StatusOK, w.Code, w.Body.String())
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
		for _, j := range answer.Jobs {
			ids = append(ids, j.ID)
		}
		return ids
	}
	all := ask()
	require.Len(t, all, 5)
	require.Equal(t, all[:2], ask("rows", "2", "page", "1"))
	require.Equal(t, all[2:4], ask("rows", "2", "page", "2"))
	require.Equal(t, all[4:], ask("rows", "2", "page", "3"))
	require.Empty(t, ask("rows", "2", "page", "4"))

	shown := func(pairs ...string) string {
		w := get(t, h, link("jobs", append([]string{"topic", "order:cancel", "state", "scheduled", "rows", "2"}, pairs...)...))
		require.Equal(t, http.StatusOK, w.Code, w.Body.String())
		return w.Body.String()
	}
	require.Contains(t, shown("page", "2"), `name="page" min="1" max="3" value="2" required`)
	require.NotContains(t, shown("prefix", "o"), `name="page"`, "a filter looks at each job")
	for _, wrong := range []string{"0", "-1", "x", "1073741825"} {
		require.Equal(t, http.StatusBadRequest, get(t, h, link("jobs", "topic", "order:cancel", "state", "scheduled", "page", wrong)).Code)
	}
	require.Equal(t, http.StatusBadRequest, get(t, h, link("jobs", "topic", "order:cancel", "state", "scheduled", "page", "2", "prefix", "o")).Code)
}

func TestKeysPageByPage(t *testing.T) {
	h := page(t, world(t))
	whole := askKeys(t, h, link("keys.json", "topic", "invoice"))
	require.Len(t, whole.Keys, 3)
	require.Empty(t, whole.Next)
	require.Equal(t, "t-1", whole.Keys[0].Key)
	require.EqualValues(t, 2, whole.Keys[0].Waiting)
	require.Equal(t, 3, whole.Keys[0].Weight)
	require.Equal(t, "i-1", whole.Keys[0].First)
	require.Equal(t, 1, whole.Keys[1].Weight)
	require.True(t, whole.Keys[0].Paused)
	require.False(t, whole.Keys[1].Paused)
	require.Zero(t, whole.Keys[1].HeldUntil)
	require.WithinDuration(t, time.Now().Add(time.Hour), whole.Keys[2].HeldUntil, time.Minute)
	require.Equal(t, base64.StdEncoding.EncodeToString([]byte(evilBytes)), whole.Keys[2].KeyBase64)

	var seen []string
	for cursor := ""; ; {
		p := askKeys(t, h, link("keys.json", "topic", "invoice", "rows", "1", "cursor", cursor))
		for _, k := range p.Keys {
			seen = append(seen, k.Key+k.KeyBase64)
		}
		if cursor = p.Next; cursor == "" {
			break
		}
		require.Contains(t, get(t, h, link("keys", "topic", "invoice", "rows", "1")).Body.String(), `rel="next"`)
	}
	require.Len(t, seen, 3)
	for i, k := range whole.Keys {
		require.Equal(t, k.Key+k.KeyBase64, seen[i])
	}

	for _, bad := range [][]string{{"cursor", "?"}, {"rows", "many"}, {"rows", "0"}, {"rows", "1001"}} {
		require.Equal(t, http.StatusBadRequest, get(t, h, link("keys", "topic", "invoice", bad[0], bad[1])).Code, bad)
	}
	require.Equal(t, http.StatusNotFound, get(t, h, link("keys", "topic", "none")).Code)
	require.Contains(t, get(t, h, link("keys", "topic", "report")).Body.String(), "No ready job has a key.")
}

// The links of the page lead to exactly the jobs of each key, whatever its bytes are.
func TestKeysLeadToTheirJobs(t *testing.T) {
	h := page(t, world(t))
	root, err := html.Parse(strings.NewReader(get(t, h, link("keys", "topic", "invoice")).Body.String()))
	require.NoError(t, err)
	found := make(map[string]int)
	walk(root, func(n *html.Node) {
		ref, _ := attr(n, "href")
		if n.Data != "a" || !strings.HasPrefix(ref, "jobs?") || !strings.Contains(ref, "key=") {
			return
		}
		var p struct {
			Jobs []struct {
				Key       string
				KeyBase64 string `json:"key_base64"`
			}
		}
		w := get(t, h, "/"+strings.Replace(ref, "jobs?", "jobs.json?", 1))
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		for _, j := range p.Jobs {
			found[j.Key+j.KeyBase64]++
		}
	})
	require.Equal(t, map[string]int{"t-1": 2, "t-2": 1, strings.ToValidUTF8(evilBytes, "\uFFFD") + base64.StdEncoding.EncodeToString([]byte(evilBytes)): 1}, found)
	require.Contains(t, get(t, h, link("job", "topic", "invoice", "id", "i-3")).Body.String(), `>t-2</a>`)
	require.NotContains(t, get(t, h, link("jobs", "topic", "order:cancel")).Body.String(), `scope="col">Key<`, "no job there has a key")
}

func TestActOnTheJobsOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := world(t)
		h := page(t, q, web.Actions(q.Client))
		list := []string{"do", "cancel", "topic", "invoice", "state", "ready", "key", "t-1", "all", "1"}
		require.Contains(t, get(t, h, link("confirm", list...)).Body.String(), "2 jobs match now")
		w := post(t, h, link("act", list...), url.Values{"typed": {"invoice"}})
		require.Equal(t, http.StatusSeeOther, w.Code)
		synctest.Wait() // it has ended
		left, err := q.Inspector.Jobs(t.Context(), delayq.Query{Topic: "invoice", State: delayq.StateReady})
		require.NoError(t, err)
		require.Len(t, left.Jobs, 3)
		for _, j := range left.Jobs {
			require.NotEqual(t, "t-1", j.Key)
		}
	})
}

// oddKeys are names of keys that could break a link, a form or a page. A key has any bytes.
var oddKeys = []string{
	"tenant-7", evilID, evilBytes, "a b", " ", "a+b%2Fc&key=x#y?topic=z", "../..", "客户 七", "\u202e", strings.Repeat("k", 255),
}

func TestActOnAKey(t *testing.T) {
	for _, key := range oddKeys {
		t.Run(fmt.Sprintf("%.20q", key), func(t *testing.T) {
			q := world(t)
			h := page(t, q, web.Actions(q.Client), web.Actor(alice))
			ctx := t.Context()
			at := func(page string, more ...string) string {
				return link(page, append([]string{"topic", "invoice", "key", key}, more...)...)
			}
			// do sends the form that a page shows to where it says, and follows the answer.
			do := func(act string, form url.Values) *delayq.KeyInfo {
				t.Helper()
				asked := get(t, h, at("edit-key", "do", act))
				require.Equal(t, http.StatusOK, asked.Code, asked.Body.String())
				root, err := html.Parse(strings.NewReader(asked.Body.String()))
				require.NoError(t, err)
				inert(t, act, root)
				target := ""
				walk(root, func(n *html.Node) {
					if method, _ := attr(n, "method"); n.Data == "form" && method == "post" {
						target, _ = attr(n, "action")
					}
				})
				w := post(t, h, "/"+target, form)
				require.Equal(t, http.StatusSeeOther, w.Code, w.Body.String())
				require.Equal(t, at("key", "did", "key-"+act), "/"+w.Header().Get("Location"))
				shown := get(t, h, "/"+w.Header().Get("Location"))
				require.Equal(t, http.StatusOK, shown.Code)
				require.Contains(t, shown.Body.String(), `role="status"`)
				root, err = html.Parse(strings.NewReader(shown.Body.String()))
				require.NoError(t, err)
				inert(t, act, root)
				k, err := q.Inspector.Key(ctx, "invoice", key)
				require.NoError(t, err)
				return k
			}
			require.NoError(t, q.Client.ResumeKey(ctx, "invoice", key))
			k := do("hold", url.Values{"for": {"3d"}})
			require.WithinDuration(t, q.Now().Add(72*time.Hour), k.HeldUntil, time.Minute)
			require.Equal(t, k.HeldUntil, do("hold", url.Values{"for": {"1h"}}).HeldUntil, "a hold never shortens another one")
			require.True(t, do("pause", nil).Paused)
			var shown struct {
				Schema, Key string
				KeyBase64   string `json:"key_base64"`
				Paused      bool
			}
			require.NoError(t, json.Unmarshal(get(t, h, at("key.json")).Body.Bytes(), &shown))
			require.Equal(t, "delayq.web.key/1", shown.Schema)
			if shown.KeyBase64 != "" {
				exact, err := base64.StdEncoding.DecodeString(shown.KeyBase64)
				require.NoError(t, err)
				shown.Key = string(exact)
			}
			require.Equal(t, key, shown.Key)
			require.True(t, shown.Paused, "what was read before is forgotten")
			k = do("resume", nil)
			require.False(t, k.Paused)
			require.Zero(t, k.HeldUntil)
			k = do("limits", url.Values{"weight": {"4"}, "running": {" 2 "}, "rate": {"90 / 1d"}, "burst": {"3"}, "strict": {"1"}})
			require.Equal(t, delayq.KeyLimits{Weight: 4, Running: 2, Rate: delayq.Per(90, 24*time.Hour).Burst(3).Strict()}, k.Limits)
			require.Zero(t, do("limits", url.Values{"running": {"0"}, "rate": {"0"}}).Limits)

			acts, err := q.Inspector.Audit(ctx, 6)
			require.NoError(t, err)
			for i, action := range []string{"set key limits", "set key limits", "resume key", "pause key", "hold key", "hold key"} {
				require.Equal(t, action, acts[i].Action)
				require.Equal(t, "alice", acts[i].Actor)
				require.Equal(t, "invoice", acts[i].Topic)
				require.Contains(t, acts[i].Filter, fmt.Sprintf("key %q", key))
			}
			audit := get(t, h, "/audit")
			root, err := html.Parse(strings.NewReader(audit.Body.String()))
			require.NoError(t, err)
			inert(t, "audit", root)
		})
	}
}

// The form of the limits has those of the key, so sending it as it is changes nothing.
func TestKeyLimitsAreInTheirForm(t *testing.T) {
	q := world(t)
	h := page(t, q, web.Actions(q.Client))
	target := link("edit-key", "topic", "invoice", "key", "t-2", "do", "limits")
	for _, want := range []delayq.KeyLimits{
		{},
		{Weight: 7},
		{Running: 1000, Rate: delayq.Per(100, time.Minute)},
		{Weight: 1000, Rate: delayq.Per(1_000_000, 26*time.Hour).Burst(1_000_000)},
		{Rate: delayq.Per(3, 90*time.Minute).Burst(2).Strict()},
		{Rate: delayq.Per(1, time.Microsecond)},
		{Rate: delayq.Per(5, 366*24*time.Hour).Strict()},
		{Rate: delayq.Per(1, time.Hour).Strict()},
	} {
		require.NoError(t, q.Client.SetKeyLimits(t.Context(), "invoice", "t-2", want))
		root, err := html.Parse(strings.NewReader(get(t, h, target).Body.String()))
		require.NoError(t, err)
		form := url.Values{}
		walk(root, func(n *html.Node) {
			name, _ := attr(n, "name")
			value, set := attr(n, "value")
			if kind, _ := attr(n, "type"); kind == "checkbox" {
				_, set = attr(n, "checked")
			}
			if n.Data == "input" && name != "id" && set {
				form.Set(name, value)
			}
		})
		require.Contains(t, form, "weight")
		w := post(t, h, target, form)
		require.Equal(t, http.StatusSeeOther, w.Code, w.Body.String())
		k, err := q.Inspector.Key(t.Context(), "invoice", "t-2")
		require.NoError(t, err)
		require.Equal(t, want, k.Limits, form)
	}
}

// What is refused says what is wrong and where, and writes nothing.
func TestWrongActsOnAKey(t *testing.T) {
	q := world(t)
	h := page(t, q, web.Actions(q.Client))
	before := q.Miniredis.Dump()
	for _, one := range []struct {
		do, field, value, text string
	}{
		{"hold", "for", "", `&#34;&#34; is not a duration`},
		{"hold", "for", "soon", `&#34;soon&#34; is not a duration`},
		{"hold", "for", "NaNd", `&#34;NaNd&#34; is not a duration`},
		{"hold", "for", "0", `&#34;0&#34; must be from 1ms to 36500d`},
		{"hold", "for", "-5m", `&#34;-5m&#34; must be from 1ms to 36500d`},
		{"hold", "for", "999us", "must be from 1ms to 36500d"},
		{"hold", "for", "36500.1d", "must be from 1ms to 36500d"},
		{"limits", "weight", "0", `&#34;0&#34; must be a number from 1 to 1000`},
		{"limits", "weight", "1001", `&#34;1001&#34; must be a number from 1 to 1000`},
		{"limits", "running", "-1", `&#34;-1&#34; must be a number from 0 to 1000`},
		{"limits", "running", "1001", `&#34;1001&#34; must be a number from 0 to 1000`},
		{"limits", "running", "<b>", `&#34;&lt;b&gt;&#34; must be a number from 0 to 1000`},
		{"limits", "running", "99999999999999999999", "must be a number from 0 to 1000"},
		{"limits", "rate", "x", `&#34;x&#34; must be starts/period, such as 100/1m`},
		{"limits", "rate", "100", "must be starts/period"},
		{"limits", "rate", "0/0s", "must be starts/period"},
		{"limits", "rate", "-1/1m", "must be starts/period"},
		{"limits", "rate", "1/-1m", "must be starts/period"},
		{"limits", "rate", "1/1m/1m", "must be starts/period"},
		{"limits", "rate", "1000001/1d", `&#34;1000001/1d&#34; must have from 1 to 1000000 starts`},
		{"limits", "rate", "1/367d", "the period of &#34;1/367d&#34; must be from 1µs for each start to 366d"},
		{"limits", "rate", "10/9us", "must be from 1µs for each start to 366d"},
		{"limits", "burst", "1", "burst and strict need one"},
		{"limits", "strict", "1", "burst and strict need one"},
		{"limits", "rate|burst", "100/1m|0", `&#34;0&#34; must be a number from 1 to 100`},
		{"limits", "rate|burst", "100/1m|101", `&#34;101&#34; must be a number from 1 to 100`},
		{"limits", "rate|burst|strict", "100/1m|100|1", `&#34;100&#34; must be a number from 1 to 99`},
	} {
		form := url.Values{"weight": {"5"}}
		values := strings.Split(one.value, "|")
		for i, name := range strings.Split(one.field, "|") {
			form.Set(name, values[i])
		}
		w := post(t, h, link("edit-key", "topic", "invoice", "key", "t-2", "do", one.do), form)
		require.Equal(t, http.StatusBadRequest, w.Code, one)
		require.Contains(t, w.Body.String(), one.text, one)
		require.Contains(t, w.Body.String(), `<span class="mistake"`, "it is beside its field")
	}
	for _, do := range []string{"hold", "pause", "resume", "limits"} {
		form := url.Values{"for": {"1h"}, "running": {"1"}}
		for _, key := range []string{"", strings.Repeat("k", 256)} {
			for _, name := range []string{"key", "key.json", "edit-key"} {
				w := get(t, h, link(name, "topic", "invoice", "key", key, "do", do))
				require.Equal(t, http.StatusBadRequest, w.Code, name)
				require.Contains(t, w.Body.String(), fmt.Sprintf("key of %d bytes: must have 1 to 255", len(key)))
			}
			w := post(t, h, link("edit-key", "topic", "invoice", "key", key, "do", do), form)
			require.Equal(t, http.StatusBadRequest, w.Code, do)
			require.Contains(t, w.Body.String(), fmt.Sprintf("key of %d bytes: must have 1 to 255", len(key)))
		}
		for target, code := range map[string]int{
			link("edit-key", "topic", "none", "key", "k", "do", do): http.StatusNotFound, // and it does not come to be
			link("edit-key", "key", "k", "do", do):                  http.StatusBadRequest,
		} {
			require.Equal(t, code, get(t, h, target).Code, target)
			require.Equal(t, code, post(t, h, target, form).Code, target)
		}
	}
	for _, do := range []string{"", "explode", "cancel"} {
		target := link("edit-key", "topic", "invoice", "key", "t-2", "do", do)
		require.Equal(t, http.StatusNotFound, get(t, h, target).Code)
		require.Equal(t, http.StatusNotFound, post(t, h, target, nil).Code)
	}
	require.Equal(t, http.StatusNotFound, get(t, h, link("key", "topic", "none", "key", "k")).Code)
	require.Equal(t, before, q.Miniredis.Dump())
	require.Equal(t, http.StatusOK, get(t, h, link("key", "topic", "invoice", "key", "nobody")).Code, "a key needs no jobs")
}

// Who may not act, or know of a topic, does not see the acts and cannot send them.
func TestRightsToActOnAKey(t *testing.T) {
	q := world(t)
	shown := func(h http.Handler) (list []string) {
		for _, target := range []string{link("keys", "topic", "invoice"), link("key", "topic", "invoice", "key", "t-2")} {
			w := get(t, h, target)
			require.Equal(t, http.StatusOK, w.Code)
			root, err := html.Parse(strings.NewReader(w.Body.String()))
			require.NoError(t, err)
			walk(root, func(n *html.Node) {
				ref, _ := attr(n, "href")
				if u, err := url.Parse(ref); err == nil && u.Path == "edit-key" && u.Query().Get("key") == "t-2" {
					list = append(list, u.Query().Get("do"))
				}
			})
		}
		return list
	}
	codes := func(h http.Handler) (list []int) {
		for _, do := range []string{"hold", "pause", "resume", "limits"} {
			target := link("edit-key", "topic", "invoice", "key", "t-2", "do", do)
			list = append(list, get(t, h, target).Code, post(t, h, target, url.Values{"for": {"1h"}}).Code)
		}
		return list
	}
	only := func(right web.Right) *web.Handler {
		return page(t, q, web.Actions(q.Client), web.Authorize(func(_ *http.Request, r web.Right, _ string) error {
			if r != web.RightView && r != right {
				return errors.New("not you")
			}
			return nil
		}))
	}
	const ok, done, no, never, method = http.StatusOK, http.StatusSeeOther, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed
	before := q.Miniredis.Dump()
	require.Empty(t, shown(page(t, q)), "the page only reads")
	require.Equal(t, []int{never, method, never, method, never, method, never, method}, codes(page(t, q)))
	require.Empty(t, shown(only(web.RightView)))
	require.Equal(t, []int{no, no, no, no, no, no, no, no}, codes(only(web.RightView)))
	hidden := page(t, q, web.Actions(q.Client), web.Visible(func(_ *http.Request, topic string) bool { return topic != "invoice" }))
	require.Equal(t, never, get(t, hidden, link("key", "topic", "invoice", "key", "t-2")).Code)
	require.Equal(t, []int{never, never, never, never, never, never, never, never}, codes(hidden))
	all := page(t, q, web.Actions(q.Client))
	for _, do := range []string{"hold", "pause", "resume", "limits"} {
		forged := post(t, all, link("edit-key", "topic", "invoice", "key", "t-2", "do", do), url.Values{"for": {"1h"}}, func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			r.Header.Set("Origin", "https://evil.example.com")
		})
		require.Equal(t, no, forged.Code, do)
	}
	require.Equal(t, before, q.Miniredis.Dump())

	require.Equal(t, []string{"hold", "pause", "limits", "hold", "pause", "limits"}, shown(all))
	require.Equal(t, []string{"limits", "limits"}, shown(only(web.RightLimits)))
	require.Equal(t, []int{no, no, no, no, no, no, ok, done}, codes(only(web.RightLimits)))
	require.Equal(t, []string{"hold", "pause", "hold", "pause"}, shown(only(web.RightPause)))
	require.Equal(t, []int{ok, done, ok, done, ok, done, no, no}, codes(only(web.RightPause)))
	require.NoError(t, q.Client.HoldKey(t.Context(), "invoice", "t-2", time.Hour))
	require.Equal(t, []string{"hold", "pause", "resume", "hold", "pause", "resume"}, shown(only(web.RightPause)))
	require.NoError(t, q.Client.PauseKey(t.Context(), "invoice", "t-2"))
	require.Equal(t, []string{"resume", "limits", "resume", "limits"}, shown(page(t, q, web.Actions(q.Client))), "a hold would change nothing")
}

// A list asks for the rights once, and not for each of its rows.
func TestKeysAskForRightsOnce(t *testing.T) {
	q := world(t)
	asked := func(rows string, keys int) (n int) {
		h := page(t, q, web.Actions(q.Client), web.Authorize(func(*http.Request, web.Right, string) error {
			n++
			return nil
		}))
		require.Len(t, askKeys(t, h, link("keys.json", "topic", "invoice", "rows", rows)).Keys, keys)
		n = 0
		get(t, h, link("keys", "topic", "invoice", "rows", rows))
		return n
	}
	require.Equal(t, asked("1", 1), asked("100", 3))
}

// In an order one job of a key runs at a time, whatever the limits of the key are.
func TestKeyOfAnOrder(t *testing.T) {
	q := world(t)
	h := page(t, q, web.Actions(q.Client))
	ctx := t.Context()
	require.NoError(t, q.Client.SetLimits(ctx, "invoice", delayq.Limits{Ordered: true}))
	require.NoError(t, q.Client.SetKeyLimits(ctx, "invoice", "t-2", delayq.KeyLimits{Running: 20}))
	var k limitedKey
	require.NoError(t, json.Unmarshal(get(t, h, link("key.json", "topic", "invoice", "key", "t-2")).Body.Bytes(), &k))
	require.Equal(t, 1, k.LimitRunning)
	require.False(t, k.OwnRunning)
	const note = "The jobs of each key run in order, so it is always 1."
	require.Contains(t, get(t, h, link("edit-key", "topic", "invoice", "key", "t-2", "do", "limits")).Body.String(), note)
	require.NoError(t, q.Client.SetLimits(ctx, "invoice", delayq.Limits{}))
	require.NotContains(t, get(t, page(t, q, web.Actions(q.Client)), link("edit-key", "topic", "invoice", "key", "t-2", "do", "limits")).Body.String(), note)
}

// The keys of a topic with limits show what is in force for each, how many of its jobs run, and why
// those that wait do so. A topic all of whose keys wait still has its tab.
func TestKeysShowTheirLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delayqtest.Start(t)
		ctx := t.Context()
		require.NoError(t, q.Client.SetLimits(ctx, "report", delayq.Limits{RunningPerKey: 2, RatePerKey: delayq.Per(600, time.Hour).Burst(3)}))
		require.NoError(t, q.Client.SetKeyLimits(ctx, "report", "own", delayq.KeyLimits{Running: 1}))
		require.NoError(t, q.Client.SetKeyLimits(ctx, "report", "slow", delayq.KeyLimits{Running: 5, Rate: delayq.Per(1, time.Hour)}))
		for _, key := range []string{"each", "own", "slow"} {
			for i := range 4 {
				_, err := q.Client.Enqueue(ctx, "report", fmt.Sprint(key, "-", i), nil, delayq.Key(key))
				require.NoError(t, err)
			}
		}
		wait, started := make(chan struct{}), make(chan struct{}, 12)
		stop := q.Serve(func(s *delayq.Server) {
			s.HandlerFunc("report", func(context.Context, *delayq.Job) error {
				started <- struct{}{}
				<-wait
				return nil
			}, delayq.Concurrency(20))
		})
		defer stop()
		defer close(wait)
		for range 4 {
			<-started
		}
		synctest.Wait()
		h := page(t, q)
		keys := map[string]limitedKey{}
		var p struct{ Keys []limitedKey }
		w := get(t, h, link("keys.json", "topic", "report"))
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		for _, k := range p.Keys {
			keys[k.Key] = k
			require.NotZero(t, k.LimitedUntil)
		}
		const each = "600 per 1h0m0s, burst 3"
		for key, want := range map[string]limitedKey{
			"each": {Waiting: 2, Running: 2, LimitRunning: 2, LimitRate: each},
			"own":  {Waiting: 3, Running: 1, LimitRunning: 1, OwnRunning: true, LimitRate: each},
			"slow": {Waiting: 3, Running: 1, LimitRunning: 5, OwnRunning: true, LimitRate: "1 per 1h0m0s, burst 1", OwnRate: true},
		} {
			want.Key, want.LimitedUntil = key, keys[key].LimitedUntil
			require.Equal(t, want, keys[key])
		}
		text := get(t, h, link("keys", "topic", "report")).Body.String()
		require.Contains(t, text, `<td class="n" data-label="Running">2 of 2</td>`)
		require.Contains(t, text, `1 of 1 <span class="none">own</span>`)
		require.Equal(t, 2, strings.Count(text, "as many run as may"))
		require.Equal(t, 3, strings.Count(text, `class="status limited"`))
		text = get(t, h, link("topic", "topic", "report")).Body.String()
		require.Contains(t, text, "<dt>at most running per key</dt><dd>2</dd>")
		require.Contains(t, text, `<dt>rate per key</dt><dd class="text">`+each+`</dd>`)
		require.Contains(t, text, link("keys", "topic", "report")[1:])
		stats, err := q.Inspector.Stats(ctx, "report")
		require.NoError(t, err)
		require.Zero(t, stats[0].Keys)
	})
}

type limitedKey struct {
	Key          string
	Waiting      int64
	Running      int64
	LimitRunning int       `json:"limit_running"`
	LimitRate    string    `json:"limit_rate"`
	OwnRunning   bool      `json:"own_limit_running"`
	OwnRate      bool      `json:"own_limit_rate"`
	LimitedUntil time.Time `json:"limited_until"`
}
