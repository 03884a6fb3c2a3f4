package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// ofChosen has the form of each act and what it does to a job that was chosen. now is nil if the
// job is gone. TestEachActOnChosenJobs fails if an act is not in it.
var ofChosen = map[string]struct {
	form  url.Values
	check func(t *testing.T, before, now *delayq.JobInfo)
}{
	"run": {nil, func(t *testing.T, _, now *delayq.JobInfo) { require.Equal(t, delayq.StateReady, now.State) }},
	"reschedule": {url.Values{"by": {" +24h"}}, func(t *testing.T, before, now *delayq.JobInfo) {
		require.Equal(t, before.Due.Add(24*time.Hour), now.Due, "each by the same")
		require.Equal(t, delayq.StateScheduled, now.State)
	}},
	"priority": {url.Values{"ahead": {"-10m"}}, func(t *testing.T, before, now *delayq.JobInfo) {
		require.Equal(t, before.State, now.State) // the audit has the priority
	}},
	"revive": {nil, func(t *testing.T, _, now *delayq.JobInfo) { require.Equal(t, delayq.StateReady, now.State) }},
	"bury": {url.Values{"because": {"a trap"}}, func(t *testing.T, _, now *delayq.JobInfo) {
		require.Equal(t, delayq.StateDead, now.State)
		require.Equal(t, "a trap", now.Errors[len(now.Errors)-1].Message)
	}},
	"cancel": {nil, func(t *testing.T, _, now *delayq.JobInfo) { require.Nil(t, now) }},
	"purge":  {nil, func(t *testing.T, _, now *delayq.JobInfo) { require.Nil(t, now) }},
}

// Each act on two chosen jobs of each state: it acts on them and on no other in the states that it
// is for, and leaves the jobs of all other states as they are, also if the link names no state. So
// nobody deletes a dead job with the right to cancel.
func TestEachActOnChosenJobs(t *testing.T) {
	require.Len(t, ofChosen, len(actNames))
	for name, a := range acts {
		for _, state := range states {
			for _, named := range []bool{true, false} {
				q, h := statesWorld(t)
				ctx := context.Background()
				read := func(id string) *delayq.JobInfo {
					info, err := q.Inspector.Job(ctx, "t", string(state)+id)
					if err != nil {
						require.ErrorIs(t, err, delayq.ErrNotFound)
						return nil
					}
					return info
				}
				before := map[string]*delayq.JobInfo{"-1": read("-1"), "-2": read("-2"), "-3": read("-3")}
				form := url.Values{"ids": {string(state) + "-1", string(state) + "-2"}, "typed": {"t"}}
				for field, values := range ofChosen[name].form {
					form[field] = values
				}
				link := "topic=t&do=" + name
				if named {
					link += "&state=" + string(state)
				}
				w := send(h, http.MethodPost, "act", link, form)
				where := name + " " + string(state) + " " + w.Body.String()
				require.Equal(t, http.StatusSeeOther, w.Code, where)
				fits := slices.Contains(a.states, state)
				if did := w.Header().Get("Location"); fits {
					require.Contains(t, did, "&n=2&failed=0", where)
				} else {
					require.Contains(t, did, "&n=0&failed=2", where)
				}
				acts, err := q.Inspector.Audit(ctx, 10)
				require.NoError(t, err)
				if !fits {
					require.Empty(t, acts, where)
				} else if name == "priority" {
					require.Equal(t, "set priority priority -10m0s, was priority 0s", acts[0].Action+" "+acts[0].Filter+", was "+acts[0].Was)
				}
				for id, old := range before {
					if fits && id != "-3" {
						ofChosen[name].check(t, old, read(id))
						continue
					}
					require.Equal(t, old, read(id), where)
				}
				h.Close()
			}
		}
	}
}

// statesWorld returns a page of a topic "t" with three jobs of each state, which have a key.
func statesWorld(t *testing.T) (*delayqtest.TestQueue, *Handler) {
	q := delayqtest.Start(t)
	ctx := context.Background()
	began, release := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(release) })
	put := func(state delayq.State, opts ...delayq.JobOption) {
		for _, id := range []string{"-1", "-2", "-3"} {
			_, err := q.Client.Enqueue(ctx, "t", string(state)+id, nil, append(opts, delayq.Key("k"))...)
			require.NoError(t, err)
		}
	}
	q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("t", func(_ context.Context, job *delayq.Job) error {
			if strings.HasPrefix(job.ID, string(delayq.StateRunning)) {
				began <- struct{}{}
				<-release
			}
			return nil
		})
	}, delayq.Concurrency(3))
	put(delayq.StateDone, delayq.Retention(24*time.Hour))
	q.Advance(time.Second)
	put(delayq.StateRunning)
	for range 3 {
		<-began
	}
	put(delayq.StateScheduled, delayq.ProcessIn(time.Hour))
	put(delayq.StateReady)
	put(delayq.StateDead, delayq.ProcessIn(time.Hour))
	for _, id := range []string{"-1", "-2", "-3"} {
		require.NoError(t, q.Client.Bury(ctx, "t", string(delayq.StateDead)+id, "a test"))
	}
	h, err := New(q.Inspector, Actions(q.Client), Actor(func(*http.Request) string { return "alice" }))
	require.NoError(t, err)
	return q, h
}

// A mistake in the form of an act on chosen jobs is shown beside its field, and nothing is changed.
func TestMistakesOfActsOnChosenJobs(t *testing.T) {
	q, h := statesWorld(t)
	before := q.Miniredis.Dump()
	for _, test := range []struct {
		link  string
		form  url.Values
		field string // "": of no field
	}{
		{"do=reschedule&state=scheduled", nil, "in"},
		{"do=reschedule&state=scheduled", url.Values{"by": {"0s"}}, "by"},
		{"do=reschedule&state=scheduled", url.Values{"by": {"x"}}, "by"},
		{"do=reschedule&state=scheduled", url.Values{"by": {"1h"}, "in": {"1h"}}, "by"},
		{"do=reschedule&state=scheduled", url.Values{"by": {"1h"}, "at": {"2030-01-01 00:00"}}, "by"},
		{"do=reschedule&state=scheduled&all=1", url.Values{"by": {"1h"}}, ""},
		{"do=priority&state=scheduled", nil, "ahead"},
		{"do=priority&state=scheduled", url.Values{"ahead": {"x"}}, "ahead"},
		{"do=priority&state=scheduled", url.Values{"ahead": {"24h1ms"}}, "ahead"},
		{"do=priority&state=scheduled", url.Values{"ahead": {"-25h"}}, "ahead"},
		{"do=priority&state=scheduled&all=1", url.Values{"ahead": {"1h"}}, ""},
	} {
		form := url.Values{"ids": {"scheduled-1", "scheduled-2"}}
		for name, values := range test.form {
			form[name] = values
		}
		w := send(h, http.MethodPost, "act", "topic=t&"+test.link, form)
		require.Equal(t, http.StatusBadRequest, w.Code, test)
		if test.field != "" {
			require.Contains(t, w.Body.String(), `aria-describedby="m-`+test.field+`"`, test)
		}
		require.Equal(t, before, q.Miniredis.Dump(), test)
	}
	for _, by := range []string{"24h", "-24h", "0s", "-0s"} {
		form := url.Values{"ids": {"scheduled-1"}, "ahead": {by}}
		require.Equal(t, http.StatusSeeOther, send(h, http.MethodPost, "act", "topic=t&do=priority&state=scheduled", form).Code, by)
	}
}

// The priority is offered where jobs have keys, and is not for all that match.
func TestPriorityIsOfferedForKeys(t *testing.T) {
	q, h := statesWorld(t)
	_, err := q.Client.Enqueue(t.Context(), "plain", "one", nil, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	page := func(name, query string) string { return send(h, http.MethodGet, name, query, nil).Body.String() }
	require.Contains(t, page("jobs", "topic=t&state=scheduled"), `value="priority"`)
	require.Contains(t, page("job", "topic=t&id=scheduled-1"), "do=priority")
	require.NotContains(t, page("jobs", "topic=t&state=done"), `value="priority"`)
	require.NotContains(t, page("jobs", "topic=plain&state=scheduled"), `value="priority"`)
	require.NotContains(t, page("job", "topic=plain&id=one"), "do=priority")
	require.Contains(t, page("confirm", "topic=t&do=reschedule&state=scheduled&id=scheduled-1"), `name="by"`)
	require.NotContains(t, page("confirm", "topic=t&do=reschedule&state=scheduled&all=1"), `name="by"`)
}

// A lostAnswer executes calls of a script and loses their answers.
type lostAnswer struct{ script string }

func (l *lostAnswer) DialHook(next redis.DialHook) redis.DialHook { return next }
func (l *lostAnswer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (l *lostAnswer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if len(cmd.Args()) > 1 && err == nil && (cmd.Args()[1] == delayq.Scripts()[l.script] || strings.Contains(fmt.Sprint(cmd.Args()[1]), "-- "+l.script+": ")) {
			err = &net.OpError{Op: "read", Net: "tcp", Err: errors.New("connection reset by peer")}
			cmd.SetErr(err)
		}
		return err
	}
}

// If Redis does not answer about a chosen job, the page does not say that it is unchanged, and
// leaves the next ones alone.
func TestChosenJobsWithoutAnswer(t *testing.T) {
	q := delayqtest.Start(t)
	was := map[string]time.Time{}
	for _, id := range []string{"a", "b", "c"} {
		job, err := q.Client.Enqueue(t.Context(), "t", id, nil, delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
		was[id] = job.Due
	}
	h, err := New(q.Inspector, Actions(q.Client))
	require.NoError(t, err)
	t.Cleanup(h.Close)
	q.Redis.AddHook(&lostAnswer{"reschedule"})
	form := url.Values{"ids": {"a", "b", "c"}, "by": {"24h"}}
	w := send(h, http.MethodPost, "act", "topic=t&do=reschedule&state=scheduled", form)
	require.Equal(t, http.StatusSeeOther, w.Code, w.Body.String())
	to := w.Header().Get("Location")
	require.Contains(t, to, "&n=0&failed=2&open=1")
	for id, by := range map[string]time.Duration{"a": 24 * time.Hour, "b": 0, "c": 0} {
		info, err := q.Inspector.Job(t.Context(), "t", id)
		require.NoError(t, err)
		require.True(t, was[id].Add(by).Equal(info.Due), id)
	}
	page, query, _ := strings.Cut(to, "?")
	shown := send(h, http.MethodGet, page, query, nil).Body.String()
	require.Contains(t, shown, "2 had moved on or failed, and are unchanged. Redis did not answer about 1: it is done or not. Look before you repeat it.")
	require.NotContains(t, shown, "open=1", "the links of the page do not take it along")
}
