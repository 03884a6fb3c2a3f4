package web

import (
	"context"
	"errors"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// A need is a request and the right that it needs for the topic "t", or for no topic.
type need struct {
	query string
	form  url.Values
	right Right
	none  bool // it is about no topic
}

// needs has what each route needs. TestEveryRouteNeedsItsRight fails if a route is not in it.
var needs = map[string][]need{
	"topics": {{right: RightView, none: true}}, "failures": {{right: RightView, none: true}, {query: "topic=t", right: RightView}},
	"servers": {{right: RightView, none: true}}, "schedules": {{right: RightView, none: true}, {query: "topic=t", right: RightView}},
	"audit": {{right: RightView, none: true}}, "redis": {{right: RightView, none: true}}, "help": {{right: RightView, none: true}},
	"find": {{query: "id=s", right: RightView, none: true}}, "bulks": {{right: RightView, none: true}},
	"topic": {{query: "topic=t", right: RightView}},
	"jobs": {
		{query: "topic=t", right: RightView}, {query: "topic=t&header=a%3Db", right: RightPayload}, {query: "topic=t&payload=x", right: RightPayload},
		{query: "topic=t&columns=payload", right: RightPayload},
	},
	"job": {{query: "topic=t&id=s", right: RightView}}, "payload": {{query: "topic=t&id=s", right: RightPayload}},
	"keys": {{query: "topic=t", right: RightView}}, "key": {{query: "topic=t&key=k", right: RightView}},
	"schedule": {{query: "topic=t&name=n", right: RightView}}, "flow": {{query: "topic=t&id=f", right: RightView}},
	"confirm": ofActs("confirm"), "act": ofActs("act"),
	"bulk":   {{query: "run=1", right: RightView}},
	"stop":   {{query: "run=1", right: RightBury}, {query: "run=2", right: RightCancel}},
	"pause":  {{query: "topic=t", right: RightPause}},
	"resume": {{query: "topic=t", right: RightPause}},
	"enqueue": {
		{query: "topic=t", right: RightEnqueue}, {form: url.Values{"topic": {"t"}}, right: RightEnqueue},
		{query: "topic=t", form: url.Values{"topic": {"t"}}, right: RightEnqueue},
		{query: "topic=t&copy=s", form: url.Values{"format": {"copy"}}, right: RightEnqueue},
	},
	"new-schedule": {
		{query: "topic=t", form: url.Values{"name": {"new"}, "every": {"1h"}}, right: RightSchedule},
		{form: url.Values{"topic": {"t"}, "name": {"other"}, "every": {"1h"}}, right: RightSchedule},
	},
	"edit-schedule": {
		{query: "topic=t&name=n&do=pause", right: RightSchedule}, {query: "topic=t&name=n&do=resume", right: RightSchedule},
		{query: "topic=t&name=n&do=trigger", right: RightSchedule},
		{query: "topic=t&name=n&do=remove", form: url.Values{"typed": {"t"}}, right: RightSchedule},
	},
	"edit-topic": {
		{query: "topic=t&do=hold", form: url.Values{"for": {"1h"}}, right: RightPause}, {query: "topic=t&do=release", right: RightPause},
		{query: "topic=t&do=limits", right: RightLimits},
	},
	"edit-key": {
		{query: "topic=t&key=k&do=hold", form: url.Values{"for": {"1h"}}, right: RightPause}, {query: "topic=t&key=k&do=pause", right: RightPause},
		{query: "topic=t&key=k&do=resume", right: RightPause}, {query: "topic=t&key=k&do=limits", right: RightLimits},
	},
}

// ofActs returns what the acts on jobs need: on one, and on all that match.
func ofActs(page string) (list []need) {
	for name, right := range map[string]Right{
		"run": RightReschedule, "reschedule": RightReschedule, "priority": RightReschedule, "revive": RightRevive, "bury": RightBury, "cancel": RightCancel, "purge": RightPurge,
	} {
		form := url.Values{"in": {"3h"}, "ahead": {"1h"}, "typed": {"t"}}
		state := string(acts[name].states[0])
		one := map[string]string{"scheduled": "s", "dead": "d"}[state]
		list = append(list, need{"topic=t&do=" + name + "&state=" + state + "&id=" + one, form, right, false})
		if page == "confirm" && acts[name].action != nil { // it is for all that match, too
			list = append(list, need{"topic=t&do=" + name + "&all=1&state=" + state, form, right, false})
			list = append(list, need{"topic=t&do=" + name + "&all=1&header=a%3Db&state=" + state, form, RightPayload, false})
		}
	}
	return list
}

// A ruling is an Authorize that a test can change. asked has what it was asked.
type ruling struct {
	refused func(right Right, topic string) bool
	asked   map[Right][]string
}

func (p *ruling) authorize(_ *http.Request, right Right, topic string) error {
	p.asked[right] = append(p.asked[right], topic)
	if p.refused != nil && p.refused(right, topic) {
		return errors.New("not you")
	}
	return nil
}

// rightsWorld returns a page of a queue with a topic "t" and two bulk runs that go on for hours.
func rightsWorld(t *testing.T) (*delayqtest.TestQueue, *Handler, *ruling) {
	q := delayqtest.Start(t)
	ctx := context.Background()
	put := func(topic, id string, opts ...delayq.JobOption) {
		_, err := q.Client.Enqueue(ctx, topic, id, nil, append(opts, delayq.ProcessIn(time.Hour))...)
		require.NoError(t, err)
	}
	put("t", "s", delayq.Key("k"))
	put("t", "d")
	require.NoError(t, q.Client.Bury(ctx, "t", "d", "a test"))
	require.NoError(t, q.Client.Schedule(ctx, "t", "n", delayq.Every(time.Hour), nil))
	flow := delayq.NewFlow("t", "f", nil).Deadline(time.Hour)
	flow.AddJob("t", "first", nil)
	_, err := q.Client.Start(ctx, flow)
	require.NoError(t, err)
	p := &ruling{asked: make(map[Right][]string)}
	h, err := New(q.Inspector, Actions(q.Client), Authorize(p.authorize))
	require.NoError(t, err)
	t.Cleanup(h.Close)
	for _, id := range []string{"p-1", "p-2", "p-3"} {
		put("t", id)
	}
	for _, do := range []string{"bury", "cancel"} {
		w := send(h, http.MethodPost, "act", "topic=t&state=scheduled&prefix=p-&all=1&do="+do, url.Values{"typed": {"t"}, "pace": {"1"}})
		require.Equal(t, http.StatusSeeOther, w.Code, w.Body.String())
	}
	return q, h, p
}

func send(h *Handler, method, page, query string, form url.Values) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "/"+page+"?"+query, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// Every route refuses who lacks the right that it needs, for its topic, whatever other rights they
// have, and lets those pass that have it and may view.
func TestEveryRouteNeedsItsRight(t *testing.T) {
	for _, name := range actNames {
		for _, page := range []string{"confirm", "act"} {
			listed := func(n need) bool { return strings.Contains(n.query, "do="+name+"&") }
			require.True(t, slices.ContainsFunc(needs[page], listed), "%s is not listed", name)
		}
	}
	for name, rt := range routes {
		require.NotEmpty(t, needs[name], "%s is not listed", name)
		for _, n := range needs[name] {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				if method == http.MethodGet && (rt.show == nil || n.query == "" && !n.none) || method == http.MethodPost && rt.post == nil {
					continue
				}
				where := method + " " + name + "?" + n.query
				_, h, p := rightsWorld(t)
				mine := func(topic string) bool { return topic == "t" || n.none && topic == "" }
				p.refused = func(right Right, topic string) bool { return right == n.right && mine(topic) }
				no := http.StatusForbidden
				if name == "bulk" { // who may not view its topic does not know of it
					no = http.StatusNotFound
				}
				require.Equal(t, no, send(h, method, name, n.query, n.form).Code, "%s without %s", where, n.right)
				p.refused = func(right Right, topic string) bool { return right == RightView && mine(topic) }
				require.Equal(t, no, send(h, method, name, n.query, n.form).Code, "%s without view", where)
				p.refused = func(right Right, _ string) bool {
					return right != n.right && right != RightView && !(n.right == RightPayload && name == "confirm")
				}
				clear(p.asked)
				w := send(h, method, name, n.query, n.form)
				require.Less(t, w.Code, http.StatusBadRequest, "%s with %s alone: %s", where, n.right, w.Body.String())
				if !n.none {
					require.True(t, slices.Contains(p.asked[n.right], "t"), "%s asks for %s of its topic", where, n.right)
				}
			}
		}
	}
	for name := range needs {
		require.Contains(t, routes, name)
	}
}

// No page has a link to what the one who sees it may not see or do, whichever right is lacking.
func TestLinksLeadToNothingThatIsRefused(t *testing.T) {
	href := regexp.MustCompile(`href="([^"]+)"`)
	for right := range rightsNeeded() {
		if right == RightView {
			continue
		}
		_, h, p := rightsWorld(t)
		p.refused = func(asked Right, _ string) bool { return asked == right }
		tried := make(map[string]bool)
		for name, list := range needs {
			if routes[name].show == nil {
				continue
			}
			for _, n := range list {
				w := send(h, http.MethodGet, name, n.query, nil)
				if w.Code >= http.StatusBadRequest { // the page of an error leads to itself, in other languages
					continue
				}
				for _, link := range href.FindAllStringSubmatch(w.Body.String(), -1) {
					to, err := url.Parse(html.UnescapeString(link[1]))
					require.NoError(t, err)
					page := path.Base(to.Path)
					if rt := routes[page]; rt == nil || rt.show == nil || tried[to.String()] {
						continue
					}
					tried[to.String()] = true
					code := send(h, http.MethodGet, page, to.RawQuery, nil).Code
					require.NotEqual(t, http.StatusForbidden, code, "without %s: %s on the page %s?%s", right, to, name, n.query)
				}
			}
		}
		require.Greater(t, len(tried), 20)
	}
}

// rightsNeeded returns the rights that routes need.
func rightsNeeded() map[Right]bool {
	seen := make(map[Right]bool)
	for _, list := range needs {
		for _, n := range list {
			seen[n.right] = true
		}
	}
	return seen
}

// Every right guards something.
func TestEveryRightIsNeeded(t *testing.T) {
	seen := rightsNeeded()
	for _, right := range []Right{
		RightView, RightPayload, RightEnqueue, RightCancel, RightReschedule, RightRevive, RightBury, RightPurge, RightPause, RightLimits, RightSchedule,
	} {
		require.True(t, seen[right], right)
	}
	require.Len(t, seen, 11)
}

func TestHideValues(t *testing.T) {
	whole := `state dead, ID prefix "a, header", header "te\"nant": "4,2 \"secret\"", header "b": "secret", error "550", reason "header \"x\": \"kept\""`
	require.Equal(t, `state dead, ID prefix "a, header", header •••, header •••, error "550", reason "header \"x\": \"kept\""`, hideValues(whole))
	first := strings.Index(whole, ", header \"te")
	for cut := range len(whole) { // the audit keeps the beginning of long arguments
		hidden := hideValues(whole[:cut])
		require.NotContains(t, hidden, "secret")
		require.NotContains(t, hidden, "secre")
		if cut > first+len(", header \"")+1 {
			require.NotContains(t, hidden, "te\\")
		}
	}
	require.Equal(t, `state ready`, hideValues(`state ready`))

	edit := `Payload of 4 bytes, SHA-256 03ac6742, Headers header "pin" of 4 bytes, Key "k"`
	require.Equal(t, `Payload of 4 bytes, Headers header ••• of 4 bytes, Key "k"`, hideValues(edit))
	for cut := range len(edit) {
		require.NotContains(t, hideValues(edit[:cut]), "03")
	}
}
