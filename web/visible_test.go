package web_test

import (
	"context"
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

// refuse returns an Authorize that refuses topics.
func refuse(topics ...string) web.Option {
	return web.Authorize(func(_ *http.Request, _ web.Right, topic string) error {
		for _, one := range topics {
			if topic == one {
				return errors.New("not for you")
			}
		}
		return nil
	})
}

// A topic that Authorize refuses is on no page: not its name, its jobs, its errors, its numbers.
func TestRefusedTopicsAreNowhere(t *testing.T) {
	q := world(t)
	ctx := delayq.WithActor(t.Context(), "boss")
	q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("mail:welcome", func(context.Context, *delayq.Job) error { return nil })
		s.HandlerFunc("open", func(context.Context, *delayq.Job) error { return nil })
	})
	q.Advance(time.Second)
	require.NoError(t, q.Client.Bury(ctx, "order:cancel", "o-1", "a trap"))
	_, err := q.Client.CancelBatch(ctx, []delayq.JobRef{{Topic: "mail:welcome", ID: "u-2"}, {Topic: "order:cancel", ID: "o-2"}})
	require.NoError(t, err)
	h := page(t, q, web.Actions(q.Client), refuse("mail:welcome", "report"))
	for name, target := range goldenPages {
		w := get(t, h, target)
		u, err := url.Parse(target)
		require.NoError(t, err)
		if topic := u.Query().Get("topic"); topic == "mail:welcome" || topic == "report" {
			require.Equal(t, http.StatusForbidden, w.Code, name)
			continue
		}
		require.Contains(t, []int{http.StatusOK, http.StatusNotFound, http.StatusSeeOther}, w.Code, name) // one has no job, and one leads to the only job
		for _, secret := range []string{"mail:welcome", "mailbox", "nightly", "u-1", "u-2", ">report<"} {
			require.NotContains(t, w.Body.String(), secret, name)
		}
	}
	var sum struct{ Totals struct{ Dead int64 } }
	require.NoError(t, json.Unmarshal(get(t, h, "/topics.json").Body.Bytes(), &sum))
	require.EqualValues(t, 1, sum.Totals.Dead, "refused jobs are not counted")
	require.Contains(t, get(t, h, "/audit").Body.String(), "a trap")
	require.NotContains(t, get(t, h, "/find.json?id=u-1").Body.String(), "mail:welcome")
	require.Contains(t, get(t, h, "/servers").Body.String(), ">open<")

	require.Contains(t, get(t, page(t, q, refuse("nothing")), "/audit").Body.String(), "mail:welcome", "no topic is refused, so all is shown")
}

// What somebody searched for in payloads and headers is not shown to those who may not do so.
func TestSearchesAreShownToThoseWhoMaySearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := world(t)
		_, err := q.Client.Enqueue(t.Context(), "order:cancel", "t-42", []byte("a@b"), delayq.ProcessIn(time.Hour), delayq.Header("tenant", "42-secret"))
		require.NoError(t, err)
		ctx := delayq.WithActor(t.Context(), "boss")
		require.NoError(t, q.Client.Schedule(ctx, "order:cancel", "s", delayq.Every(time.Hour), []byte("1234"), delayq.Header("pin", "98765")))
		require.NoError(t, q.Client.Schedule(ctx, "order:cancel", "s", delayq.Every(2*time.Hour), []byte("4321"), delayq.Header("pin", "9876")))
		who := func(name string) func(*http.Request) { return func(r *http.Request) { r.Header.Set("Who", name) } }
		h := page(t, q, web.Actions(q.Client), web.Actor(func(r *http.Request) string { return r.Header.Get("Who") }),
			web.Authorize(func(r *http.Request, right web.Right, _ string) error {
				if right == web.RightPayload && r.Header.Get("Who") != "boss" {
					return errors.New("no payloads")
				}
				return nil
			}))
		w := post(t, h, link("act", "do", "bury", "topic", "order:cancel", "state", "scheduled", "all", "1", "payload", "a@b", "header", "tenant=42-secret"), nil, who("boss"))
		require.Equal(t, http.StatusSeeOther, w.Code, w.Body.String())
		synctest.Wait() // it has ended
		for _, target := range []string{"/bulk?run=1", "/bulks", "/bulk.json?run=1", "/audit", "/audit.json"} {
			intern := get(t, h, target, who("intern")).Body.String()
			require.NotContains(t, intern, "42-secret", target)
			require.NotContains(t, intern, "a%40b", target)
			require.NotContains(t, intern, "a@b", target)
		}
		require.Contains(t, get(t, h, "/bulk?run=1", who("boss")).Body.String(), "42-secret")
		require.Contains(t, get(t, h, "/audit", who("boss")).Body.String(), "42-secret")

		// What a payload was can be guessed by its hash.
		for _, target := range []string{"/audit", "/audit.json"} {
			boss, intern := get(t, h, target, who("boss")).Body.String(), get(t, h, target, who("intern")).Body.String()
			require.Regexp(t, `Payload of 4 bytes, SHA-256 [0-9a-f]{8}[^<]*pin.* of 5 bytes`, boss, target)
			require.Contains(t, intern, "Payload of 4 bytes", target)
			require.Contains(t, intern, "every 1h0m0s", target)
			require.NotContains(t, intern, "SHA-256", target)
			require.NotContains(t, intern, "pin", target)
		}

		redacted := page(t, q, web.Payload("order:*", web.Redact("card")))
		require.NotContains(t, get(t, redacted, "/audit").Body.String(), "42-secret")
	})
}

// A job that was chosen is left alone if it is not what the page said any more.
func TestFiltersHoldForChosenJobs(t *testing.T) {
	q := world(t)
	ctx := t.Context()
	_, err := q.Client.Enqueue(ctx, "order:cancel", "k-1", []byte("payload"), delayq.ProcessIn(time.Hour), delayq.Key("k"), delayq.Header("tenant", "42"))
	require.NoError(t, err)
	h := page(t, q, web.Actions(q.Client))
	cancel := func(topic string, filter ...string) int {
		return post(t, h, link("act", append([]string{"do", "cancel", "topic", topic}, filter...)...), nil).Code
	}
	before := q.Miniredis.Dump()
	for _, filter := range [][]string{
		{"state", "dead"}, {"state", "ready"}, {"state", "running"}, {"state", "scheduled", "key", "other"}, {"state", "scheduled", "prefix", "o-"},
		{"state", "scheduled", "attempt", "2"}, {"state", "scheduled", "error", "x"}, {"state", "scheduled", "header", "tenant=43"},
		{"state", "scheduled", "header", "other=42"}, {"state", "scheduled", "payload", "other"}, {"state", "scheduled", "from", "+2h"},
		{"state", "scheduled", "to", "now"}, {"state", "scheduled", "failure", "0123456789ab"}, {"key", "other"},
	} {
		require.Equal(t, http.StatusConflict, cancel("order:cancel", append(filter, "id", "k-1")...), filter)
	}
	require.Equal(t, before, q.Miniredis.Dump(), "nothing was changed")
	require.Equal(t, http.StatusSeeOther, cancel("order:cancel", "state", "scheduled", "key", "k", "prefix", "k-", "attempt", "1", "header", "tenant=42",
		"payload", "load", "from", "now", "to", "+2h", "id", "k-1"))

	// A group of failures is known to lists alone.
	f, err := q.Inspector.Failures(ctx, "mail:welcome", delayq.StateDead, 0)
	require.NoError(t, err)
	purge := func(id, failure string) int {
		return post(t, h, link("act", "do", "purge", "topic", "mail:welcome", "state", "dead", "id", id, "failure", failure), nil).Code
	}
	require.Equal(t, http.StatusConflict, purge("u-1", "0123456789ab"))
	require.Equal(t, http.StatusSeeOther, purge("u-1", f.Groups[0].Key))
	require.Equal(t, http.StatusConflict, purge("u-1", f.Groups[0].Key), "it is gone")
}

// A purge does not touch a job that was revived since the page was shown, even if that happens
// between its calls. The right to purge is none to cancel.
func TestPurgeLeavesRevivedJobsAlone(t *testing.T) {
	stopped := 0
	for n, more := 0, true; more; n++ { // before each script call of the purge
		q := delayqtest.Start(t)
		ctx := t.Context()
		for _, id := range []string{"one", "other"} {
			_, err := q.Client.Enqueue(ctx, "t", id, nil, delayq.ProcessIn(time.Hour))
			require.NoError(t, err)
			require.NoError(t, q.Client.Bury(ctx, "t", id, "a test"))
		}
		revived := false
		other := delayq.NewClient(q.Redis)
		hook := &between{name: "eval", n: n, call: func() {
			if info, err := other.Get(ctx, "t", "one"); err == nil && info.State == delayq.StateDead {
				require.NoError(t, other.Revive(ctx, "t", "one"))
				revived = true
			}
		}}
		h := page(t, q, web.Actions(q.Client))
		q.Redis.AddHook(hook)
		w := post(t, h, link("act", "do", "purge", "topic", "t", "state", "dead", "id", "one"), nil)
		more = hook.done // otherwise there is no such call
		hook.done = true
		info, err := q.Inspector.Job(ctx, "t", "one")
		if !revived {
			require.Equal(t, http.StatusSeeOther, w.Code)
			require.ErrorIs(t, err, delayq.ErrNotFound, "it was purged")
			continue
		}
		require.NoError(t, err, "call %d: %s", n, w.Body.String())
		require.Equal(t, delayq.StateReady, info.State)
		require.Equal(t, http.StatusConflict, w.Code)
		stopped++
	}
	require.GreaterOrEqual(t, stopped, 3)
}

// An act follows a job that changes between its calls, as long as the job is what was chosen.
func TestActsFollowAJobThatMoves(t *testing.T) {
	moved := 0
	for n, more := 0, true; more; n++ { // before each script call of the act
		q := delayqtest.Start(t)
		ctx := t.Context()
		_, err := q.Client.Enqueue(ctx, "t", "one", nil, delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
		other := delayq.NewClient(q.Redis)
		hook := &between{name: "eval", n: n, call: func() {
			if err := other.Reschedule(ctx, "t", "one", delayq.ProcessIn(2*time.Hour)); err == nil {
				moved++
			}
		}}
		h := page(t, q, web.Actions(q.Client))
		q.Redis.AddHook(hook)
		w := post(t, h, link("act", "do", "cancel", "topic", "t", "state", "scheduled", "id", "one"), nil)
		more = hook.done
		hook.done = true
		require.Equal(t, http.StatusSeeOther, w.Code, "call %d: %s", n, w.Body.String())
		_, err = q.Inspector.Job(ctx, "t", "one")
		require.ErrorIs(t, err, delayq.ErrNotFound)
	}
	require.GreaterOrEqual(t, moved, 2, "between reading and acting, too")
}

// Names that look like others are told apart, and can be typed.
func TestTopicsWithInvisibleCharacters(t *testing.T) {
	q := delayqtest.Start(t)
	for _, topic := range []string{"orders\u200b", "mail\u202etest", "a\u00a0b", "\u00a0", " ", " x"} {
		_, err := q.Client.Enqueue(t.Context(), topic, "1", nil, delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
		require.NoError(t, q.Client.Schedule(t.Context(), topic, "n", delayq.Every(time.Hour), nil))
		h := page(t, q, web.Actions(q.Client))
		want := html.EscapeString(fmt.Sprintf("%q", topic))
		want = strings.ReplaceAll(want, `"`, "&#34;")
		for _, target := range []string{
			"/topics", link("topic", "topic", topic), link("jobs", "topic", topic), link("job", "topic", topic, "id", "1"), "/schedules",
			link("pause", "topic", topic), link("confirm", "do", "cancel", "topic", topic, "state", "scheduled", "all", "1"),
			link("schedule", "topic", topic, "name", "n"), link("keys", "topic", topic),
		} {
			require.Contains(t, get(t, h, target).Body.String(), want, target)
		}
		for _, typed := range []string{topic, fmt.Sprintf("%q", topic)} {
			w := post(t, h, link("act", "do", "cancel", "topic", topic, "state", "scheduled", "all", "1"), url.Values{"typed": {typed}})
			require.Equal(t, http.StatusSeeOther, w.Code)
		}
		w := post(t, h, link("act", "do", "cancel", "topic", topic, "state", "scheduled", "all", "1"), url.Values{"typed": {"orders"}})
		require.Equal(t, http.StatusBadRequest, w.Code)
	}
}
