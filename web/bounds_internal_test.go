package web

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// Each bound on the jobs of an act holds where it is: what is at the bound passes, and what is one
// beyond it does not.
func TestBoundsOfActs(t *testing.T) {
	q := delayqtest.Start(t)
	ids := make([]string, typedAbove+1)
	batch := make([]delayq.NewJob, len(ids))
	for i := range ids {
		ids[i] = fmt.Sprintf("%04d", i)
		batch[i] = delayq.NewJob{Topic: "t", ID: ids[i], Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}}
	}
	_, err := q.Client.EnqueueBatch(context.Background(), batch)
	require.NoError(t, err)
	h, err := New(q.Inspector, Actions(q.Client))
	require.NoError(t, err)
	t.Cleanup(h.Close)
	confirm := func(do string, form url.Values) *httptest.ResponseRecorder {
		return send(h, http.MethodPost, "confirm", "topic=t&state=scheduled&do="+do, form)
	}
	require.Equal(t, http.StatusOK, confirm("run", url.Values{"ids": ids[:maxChosen]}).Code)
	require.Equal(t, http.StatusBadRequest, confirm("run", url.Values{"ids": ids[:maxChosen+1]}).Code)

	typed := func(do string, form url.Values) bool {
		return strings.Contains(confirm(do, form).Body.String(), `name="typed"`)
	}
	require.False(t, typed("cancel", url.Values{"ids": ids[:1]}))
	require.True(t, typed("cancel", url.Values{"ids": ids[:2]}), "two jobs are many for what cannot be undone")
	require.False(t, typed("run", url.Values{"ids": ids[:maxChosen]}))
	require.True(t, typed("run", url.Values{"all": {"1"}}), "1,001 match")
	require.True(t, typed("cancel", url.Values{"all": {"1"}}))
	_, err = q.Client.Dequeue(context.Background(), "t", ids[0])
	require.NoError(t, err)
	require.False(t, typed("run", url.Values{"all": {"1"}}), "1,000 match")
}

// Of many bulk runs the oldest one that has ended is dropped, and none that is under way. Who stops
// one first is named, and nobody who comes later.
func TestBulkRunsThatAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delayqtest.Start(t)
		for _, id := range []string{"p-1", "p-2", "p-3", "q"} {
			_, err := q.Client.Enqueue(t.Context(), "t", id, nil, delayq.ProcessIn(time.Hour))
			require.NoError(t, err)
		}
		who := ""
		h, err := New(q.Inspector, Actions(q.Client), Actor(func(*http.Request) string { return who }))
		require.NoError(t, err)
		defer h.Close()
		post := func(page, query string, form url.Values) int { return send(h, http.MethodPost, page, query, form).Code }
		who = "ann"
		require.Equal(t, http.StatusSeeOther, post("act", "topic=t&state=scheduled&prefix=p-&all=1&do=bury", url.Values{"pace": {"1"}, "most": {"3"}}))
		for range bulkKept + 1 {
			require.Equal(t, http.StatusSeeOther, post("act", "topic=t&state=scheduled&prefix=none&all=1&do=bury", nil))
			synctest.Wait() // it has ended
		}
		require.Len(t, h.runs.list, bulkKept)
		require.EqualValues(t, 1, h.runs.list[0].id, "it is under way")
		require.True(t, h.runs.list[0].state.ended.IsZero())
		require.EqualValues(t, 4, h.runs.list[1].id)

		for _, who = range []string{"bob", "eve"} {
			require.Equal(t, http.StatusSeeOther, post("stop", "run=1", nil))
		}
		synctest.Wait()
		who = "dan"
		require.Equal(t, http.StatusSeeOther, post("stop", "run=1", nil), "it has ended")
		first := h.runs.list[0]
		require.Equal(t, "ann", first.actor)
		require.Equal(t, "bob", first.state.by)
		require.True(t, first.state.stopped)
		require.Less(t, first.state.sum.Done, int64(3))
	})
}

// Only so many running jobs have an order, and pages with numbers.
func TestRunningJobsHavePages(t *testing.T) {
	p := &jobsPage{State: delayq.StateRunning, Total: 10_000, Filter: &filter{query: delayq.Query{Topic: "t", State: delayq.StateRunning, Limit: 100}}}
	require.EqualValues(t, 100, p.Pages())
	p.Total++
	require.Zero(t, p.Pages())
}
