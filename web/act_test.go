package web_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/web"
)

func alice(*http.Request) string { return "alice" }

func TestActsOnOneJob(t *testing.T) {
	q := world(t)
	h := page(t, q, web.Actions(q.Client), web.Actor(alice))
	ctx := t.Context()
	state := func(topic, id string) delayq.State {
		info, err := q.Inspector.Job(ctx, topic, id)
		if err != nil {
			require.ErrorIs(t, err, delayq.ErrNotFound)
			return ""
		}
		return info.State
	}
	do := func(act, topic, id string, form url.Values) {
		t.Helper()
		now := string(state(topic, id))
		target := link("confirm", "do", act, "topic", topic, "id", id, "state", now)
		asked := get(t, h, target)
		require.Equal(t, http.StatusOK, asked.Code)
		require.Contains(t, asked.Body.String(), "1 job of "+topic)
		w := post(t, h, link("act", "do", act, "topic", topic, "state", now, "id", id), form)
		require.Equal(t, http.StatusSeeOther, w.Code, w.Body.String())
		require.False(t, strings.HasPrefix(w.Header().Get("Location"), "/"), "relative: it works under every mount")
		require.Contains(t, get(t, h, "/"+w.Header().Get("Location")).Body.String(), `role="status"`)
	}
	do("reschedule", "order:cancel", "o-1", url.Values{"in": {"2h"}})
	info, err := q.Inspector.Job(ctx, "order:cancel", "o-1")
	require.NoError(t, err)
	require.WithinDuration(t, q.Now().Add(2*time.Hour), info.Due, time.Second)
	do("run", "order:cancel", "o-1", nil)
	require.Equal(t, delayq.StateReady, state("order:cancel", "o-1"))
	do("bury", "order:cancel", "o-2", url.Values{"because": {"a trap"}})
	require.Equal(t, delayq.StateDead, state("order:cancel", "o-2"))
	do("revive", "order:cancel", "o-2", nil)
	require.Equal(t, delayq.StateReady, state("order:cancel", "o-2"))
	do("cancel", "order:cancel", evilID, nil)
	require.Empty(t, state("order:cancel", evilID))
	do("purge", "mail:welcome", evilBytes, nil)
	require.Empty(t, state("mail:welcome", evilBytes))
	do("purge", "report", "done-1", nil)
	require.Empty(t, state("report", "done-1"))

	shown := regexp.MustCompile(`seen=([0-9a-f]{16})`).FindStringSubmatch(get(t, h, link("job", "topic", "order:cancel", "id", "o-1")).Body.String())[1]
	require.NoError(t, q.Client.Reschedule(ctx, "order:cancel", "o-1", delayq.ProcessIn(0))) // it looks as before
	seen := link("act", "do", "cancel", "topic", "order:cancel", "state", "ready", "id", "o-1", "seen", shown)
	require.Equal(t, http.StatusConflict, post(t, h, seen, nil).Code, "somebody has edited it since it was shown")
	require.Equal(t, delayq.StateReady, state("order:cancel", "o-1"))

	gone := post(t, h, link("act", "do", "cancel", "topic", "order:cancel", "id", "gone"), nil)
	require.Equal(t, http.StatusConflict, gone.Code)
	when := post(t, h, link("act", "do", "reschedule", "topic", "order:cancel", "id", "o-3"), nil)
	require.Equal(t, http.StatusBadRequest, when.Code)
	acts, err := q.Inspector.Audit(ctx, 100)
	require.NoError(t, err)
	require.Equal(t, "alice", acts[0].Actor)
	require.Equal(t, "alice", acts[6].Actor)
	require.Equal(t, "done", acts[0].Was)

	w := post(t, h, link("enqueue"), url.Values{"topic": {"order:cancel"}, "id": {"by hand"}, "in": {"1h"}})
	require.Equal(t, http.StatusSeeOther, w.Code, w.Body.String())
	acts, err = q.Inspector.Audit(ctx, 1)
	require.NoError(t, err)
	info, err = q.Inspector.Job(ctx, "order:cancel", "by hand")
	require.NoError(t, err)
	require.Equal(t, "alice enqueue order:cancel by hand due "+info.Due.UTC().Format(time.RFC3339Nano),
		strings.Join([]string{acts[0].Actor, acts[0].Action, acts[0].Topic, acts[0].ID, acts[0].Filter}, " "))
}

func TestActsOnChosenJobs(t *testing.T) {
	q := world(t)
	h := page(t, q, web.Actions(q.Client))
	ids := []string{url.QueryEscape(evilBytes), url.QueryEscape(evilID), "u-1"}
	asked := post(t, h, link("confirm", "topic", "mail:welcome", "state", "dead"), url.Values{"do": {"purge"}, "ids": ids})
	require.Contains(t, asked.Body.String(), "purge 3 jobs of mail:welcome?")
	target := link("act", "do", "purge", "topic", "mail:welcome", "state", "dead")
	w := post(t, h, target, url.Values{"ids": ids})
	require.Equal(t, http.StatusBadRequest, w.Code, "the topic has to be typed")
	w = post(t, h, target, url.Values{"ids": ids, "typed": {"mail:welcome"}})
	require.Equal(t, http.StatusSeeOther, w.Code)
	stats, err := q.Inspector.Stats(t.Context(), "mail:welcome")
	require.NoError(t, err)
	require.EqualValues(t, 2, stats[0].Dead)
	require.Equal(t, http.StatusBadRequest, post(t, h, link("confirm", "topic", "mail:welcome"), url.Values{"do": {"purge"}}).Code)
	many := make([]string, 1001)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	require.Equal(t, http.StatusBadRequest, post(t, h, target, url.Values{"ids": many}).Code)
}

func TestActsOnAllThatMatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := world(t)
		h := page(t, q, web.Actions(q.Client), web.Actor(alice))
		list := []string{"do", "revive", "topic", "mail:welcome", "state", "dead", "error", "550", "all", "1"}
		require.Contains(t, get(t, h, link("confirm", list...)).Body.String(), "5 jobs match now")
		dry := post(t, h, link("act", list...), url.Values{"dry": {"1"}})
		require.Contains(t, dry.Body.String(), "5 jobs match. Nothing was changed.")
		w := post(t, h, link("act", list...), url.Values{"spread": {"10m"}})
		require.Equal(t, http.StatusSeeOther, w.Code)
		require.Equal(t, "bulk?run=1", w.Header().Get("Location"))
		time.Sleep(time.Minute) // in the bubble: it has ended
		var p struct {
			Run struct {
				Done, Expected int64
				Actor, Error   string
				Ended          time.Time `json:"ended_at"`
			}
		}
		require.NoError(t, json.Unmarshal(get(t, h, "/bulk.json?run=1").Body.Bytes(), &p))
		require.Empty(t, p.Run.Error)
		require.False(t, p.Run.Ended.IsZero())
		require.EqualValues(t, 5, p.Run.Done)
		require.Equal(t, "alice", p.Run.Actor)
		require.Contains(t, get(t, h, "/bulk?run=1").Body.String(), "100%")
		require.Contains(t, get(t, h, "/bulks").Body.String(), "Bulk run 1: revive")
		list2, err := q.Inspector.Jobs(t.Context(), delayq.Query{Topic: "mail:welcome", State: delayq.StateScheduled})
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(list2.Jobs), 4, "they are spread over ten minutes")
		acts, err := q.Inspector.Audit(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, "apply revive", acts[0].Action)
		require.Equal(t, "alice", acts[0].Actor)
		require.EqualValues(t, 5, acts[0].Count)
		h.Close()
		require.Equal(t, http.StatusTooManyRequests, post(t, h, link("act", list...), nil).Code, "it is closed")
	})
}

// The number of a page in the link of an act means nothing to it: the act is about all that match.
func TestActsOnAllBesideAPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := world(t)
		h := page(t, q, web.Actions(q.Client), web.Actor(alice))
		defer h.Close()
		dead, _, err := q.Inspector.Count(t.Context(), delayq.Query{Topic: "mail:welcome", State: delayq.StateDead})
		require.NoError(t, err)
		list := []string{"do", "revive", "topic", "mail:welcome", "state", "dead", "rows", "2", "page", "2", "all", "1"}
		require.Equal(t, http.StatusSeeOther, post(t, h, link("act", list...), nil).Code)
		time.Sleep(time.Minute) // in the bubble: it has ended
		var p struct {
			Run struct {
				Done  int64
				Error string
			}
		}
		require.NoError(t, json.Unmarshal(get(t, h, "/bulk.json?run=1").Body.Bytes(), &p))
		require.Empty(t, p.Run.Error)
		require.Equal(t, dead, p.Run.Done)
	})
}

func TestDestructiveBulkNeedsTheTopic(t *testing.T) {
	q := world(t)
	h := page(t, q, web.Actions(q.Client))
	list := []string{"do", "purge", "topic", "mail:welcome", "state", "dead", "all", "1"}
	for _, typed := range []string{"", "mail", "mail:welcome "} {
		w := post(t, h, link("act", list...), url.Values{"typed": {typed}})
		require.Equal(t, http.StatusBadRequest, w.Code)
	}
	wrong := post(t, h, link("act", "do", "revive", "topic", "order:cancel", "state", "scheduled", "all", "1"), nil)
	require.Equal(t, http.StatusBadRequest, wrong.Code)
	stats, err := q.Inspector.Stats(t.Context(), "mail:welcome")
	require.NoError(t, err)
	require.EqualValues(t, 5, stats[0].Dead)
}

func TestStopABulkRun(t *testing.T) {
	q := world(t)
	ctx := t.Context()
	for i := range 1200 {
		_, err := q.Client.Enqueue(ctx, "many", fmt.Sprint(i), nil, delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
	}
	h := page(t, q, web.Actions(q.Client))
	list := []string{"do", "cancel", "topic", "many", "state", "scheduled", "all", "1"}
	w := post(t, h, link("act", list...), url.Values{"typed": {"many"}, "pace": {"1"}}) // it takes 20 minutes
	require.Equal(t, http.StatusSeeOther, w.Code, w.Body.String())
	require.Equal(t, http.StatusSeeOther, post(t, h, "/stop?run=1", nil).Code)
	h.Close()
	var p struct{ Run struct{ Stopped bool } }
	require.NoError(t, json.Unmarshal(get(t, h, "/bulk.json?run=1").Body.Bytes(), &p))
	require.True(t, p.Run.Stopped)
	stats, err := q.Inspector.Stats(ctx, "many")
	require.NoError(t, err)
	require.Greater(t, stats[0].Scheduled, int64(1000))
	require.Equal(t, http.StatusNotFound, post(t, h, "/stop?run=7", nil).Code)
}

func TestForgedActsAreRefused(t *testing.T) {
	q := world(t)
	h := page(t, q, web.Actions(q.Client), web.TrustedOrigin("https://admin.example.com"))
	before := q.Miniredis.Dump()
	for _, name := range []string{"act", "pause", "resume", "enqueue", "new-schedule", "edit-schedule", "edit-key", "stop", "confirm"} {
		w := post(t, h, link(name, "do", "cancel", "topic", "order:cancel", "id", "o-1"), url.Values{"topic": {"order:cancel"}}, func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			r.Header.Set("Origin", "https://evil.example.com")
		})
		require.Equal(t, http.StatusForbidden, w.Code, name)
	}
	require.Equal(t, before, q.Miniredis.Dump())
	for _, method := range []string{http.MethodPut, http.MethodDelete, http.MethodOptions} {
		w := get(t, h, link("act", "do", "cancel", "topic", "order:cancel", "id", "o-1"), func(r *http.Request) { r.Method = method })
		require.Equal(t, http.StatusMethodNotAllowed, w.Code)
	}
	require.Equal(t, http.StatusMethodNotAllowed, get(t, h, link("act", "do", "cancel", "topic", "order:cancel", "id", "o-1")).Code)
	w := post(t, h, link("pause", "topic", "report"), nil, func(r *http.Request) {
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		r.Header.Set("Origin", "https://admin.example.com")
	})
	require.Equal(t, http.StatusSeeOther, w.Code)
}

func TestTopicsAndSchedules(t *testing.T) {
	q := world(t)
	h := page(t, q, web.Actions(q.Client), web.Actor(alice))
	ctx := t.Context()
	require.Equal(t, http.StatusSeeOther, post(t, h, link("pause", "topic", "report"), url.Values{"for": {"1h"}, "because": {"a drill"}}).Code)
	require.Contains(t, get(t, h, link("topic", "topic", "report")).Body.String(), "a drill")
	require.Equal(t, http.StatusSeeOther, post(t, h, link("resume", "topic", "report"), nil).Code)
	stats, err := q.Inspector.Stats(ctx, "report")
	require.NoError(t, err)
	require.False(t, stats[0].Paused)

	w := post(t, h, "/enqueue", url.Values{
		"topic": {"report"}, "id": {"new"}, "in": {"1d"}, "payload": {"{\"n\": 12345678901, \"a\": [1.5]}"}, "format": {"msgpack"},
		"headers": {"tenant=7\r\n"}, "retries": {"3"},
	})
	require.Equal(t, http.StatusSeeOther, w.Code, w.Body.String())
	info, err := q.Inspector.Job(ctx, "report", "new")
	require.NoError(t, err)
	require.Equal(t, "\x82\xa1a\x91\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\xa1n\xcf\x00\x00\x00\x02\xdf\xdc\x1c\x35", string(info.Payload))
	require.Equal(t, map[string]string{"tenant": "7"}, info.Headers)
	require.Equal(t, 3, info.Retries)
	require.Equal(t, http.StatusConflict, post(t, h, "/enqueue", url.Values{"topic": {"report"}, "id": {"new"}}).Code)
	for _, form := range []url.Values{
		{"topic": {"report"}, "format": {"json"}, "payload": {"{"}}, {"topic": {"report"}, "format": {"base64"}, "payload": {"*"}},
		{"topic": {"report"}, "in": {"1h"}, "at": {"now"}}, {"topic": {"report"}, "headers": {"x"}}, {"topic": {"a{b"}}, {},
	} {
		require.Equal(t, http.StatusBadRequest, post(t, h, "/enqueue", form).Code, form)
	}

	form := url.Values{"topic": {"report"}, "name": {"hourly"}, "every": {"1h"}}
	require.Equal(t, http.StatusSeeOther, post(t, h, "/new-schedule", form).Code)
	require.Equal(t, http.StatusConflict, post(t, h, "/new-schedule", form).Code)
	require.Equal(t, http.StatusBadRequest, post(t, h, "/new-schedule", url.Values{"topic": {"report"}, "name": {"bad"}, "cron": {"* *"}}).Code)
	refused := post(t, h, "/new-schedule", url.Values{"topic": {"report"}, "name": {"bad"}, "cron": {"61 0 * * 8"}, "zone": {"Mars"}})
	require.Equal(t, http.StatusBadRequest, refused.Code)
	for _, mistake := range []string{"must be a number from 0 to 59", "must be a number from 0 to 7", "unknown time zone Mars"} {
		require.Contains(t, refused.Body.String(), mistake)
	}
	edit := func(do string, form url.Values) int {
		return post(t, h, link("edit-schedule", "topic", "report", "name", "hourly", "do", do), form).Code
	}
	for _, do := range []string{"pause", "resume", "trigger"} {
		require.Equal(t, http.StatusSeeOther, edit(do, nil), do)
	}
	require.Equal(t, http.StatusBadRequest, edit("remove", nil))
	require.Equal(t, http.StatusSeeOther, edit("remove", url.Values{"typed": {"report"}}))
	require.Equal(t, http.StatusNotFound, edit("remove", url.Values{"typed": {"report"}}))
	require.Equal(t, http.StatusNotFound, edit("explode", nil))
}

// A counter counts the commands of a client.
type counter struct{ n atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}
func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// A hundred open tabs cost Redis what one costs.
func TestViewersShareWhatWasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := world(t)
		var commands counter
		q.Redis.AddHook(&commands)
		cost := func(viewers int) int64 {
			h := page(t, q)
			first := commands.n.Load()
			for i := range viewers {
				go func() {
					time.Sleep(time.Duration(i) * 2 * time.Second / time.Duration(viewers)) // they were opened one after another
					for range 4 {
						for _, target := range goldenPages {
							if !strings.Contains(target, "confirm") && !strings.Contains(target, "pause") && !strings.Contains(target, "enqueue") && !strings.Contains(target, "edit-key") {
								get(t, h, target, func(r *http.Request) { r.Header.Set("HX-Request", "true") })
							}
						}
						time.Sleep(2 * time.Second)
					}
				}()
			}
			time.Sleep(15 * time.Second)
			synctest.Wait()
			return commands.n.Load() - first
		}
		one := cost(1)
		hundred := cost(100)
		t.Logf("commands of 4 refreshes: %d by one viewer, %d by a hundred", one, hundred)
		require.Positive(t, one)
		require.LessOrEqual(t, float64(hundred), 1.2*float64(one))
	})
}

// An act on a job leads to the job, and one on a schedule to the schedule.
func TestAuditLeadsToWhatWasChanged(t *testing.T) {
	q := world(t)
	h := page(t, q, web.Actions(q.Client))
	post(t, h, link("act", "do", "reschedule", "topic", "order:cancel", "id", "o-1"), url.Values{"in": {"2h"}})
	post(t, h, link("edit-schedule", "topic", "report", "name", "nightly <b>", "do", "pause"), nil)
	text := get(t, h, "/audit").Body.String()
	require.Contains(t, text, `href="job?id=o-1&amp;topic=order%3Acancel"`)
	require.Contains(t, text, `href="schedule?name=nightly`)
}

// A stored rule that is no longer accepted is marked in the list, and its page says what is wrong.
func TestStoredRuleIsMarked(t *testing.T) {
	q := world(t)
	h := page(t, q)
	const marked = "rule no longer accepted"
	require.NotContains(t, get(t, h, "/schedules").Body.String(), marked)
	require.NoError(t, q.Client.Schedule(t.Context(), "report", "old", delayq.Cron("*/59 * * * *", ""), nil))
	all, err := q.Redis.Keys(t.Context(), "*{report}:schedules").Result()
	require.NoError(t, err)
	require.Len(t, all, 1)
	stored := q.Redis.HGet(t.Context(), all[0], "old").Val() // what an earlier release stored differs in the rule
	require.NoError(t, q.Redis.HSet(t.Context(), all[0], "old", strings.Replace(stored, "*/59 ", "*/90 ", 1)).Err())
	h = page(t, q) // pages are cached for a moment
	require.Contains(t, get(t, h, "/schedules").Body.String(), marked)
	require.Contains(t, get(t, h, link("schedule", "topic", "report", "name", "old")).Body.String(), "@every 90m")
}
