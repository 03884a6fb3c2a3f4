package web

import (
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

	"github.com/delayq/delayq"
)

// plainPost reports whether a request of needs writes nothing to the audit when it is answered.
func plainPost(name string, n need) bool {
	return name == "confirm" || name == "stop" || strings.Contains(n.query, "all=1")
}

// If the audit is not written, each act of each page is done and leads to the page that it leads to
// otherwise, which says that the audit lacks it.
func TestWhatTheAuditLacksIsDone(t *testing.T) {
	const banner = `<p class="banner warn" role="alert">Done, but not recorded in the audit. Do not repeat it.</p>`
	posts := 0
	for name, rt := range routes {
		for _, n := range needs[name] {
			if rt.post == nil || plainPost(name, n) || name == "enqueue" && !n.form.Has("topic") && !strings.Contains(n.query, "copy") {
				continue
			}
			where := name + "?" + n.query
			if n.form.Get("format") == "" && name == "enqueue" {
				n.form = url.Values{"topic": {"t"}, "id": {"fresh"}}
			}
			q, h, _ := rightsWorld(t)
			well := send(h, http.MethodPost, name, n.query, n.form)
			require.Equal(t, http.StatusSeeOther, well.Code, where+well.Body.String())
			acts, err := q.Inspector.Audit(t.Context(), 100)
			require.NoError(t, err)
			require.NotEmpty(t, acts, "%s is not in the audit", where)

			q, h, _ = rightsWorld(t)
			require.NoError(t, q.Redis.Set(t.Context(), q.Prefix+":audit", "no list", 0).Err())
			w := send(h, http.MethodPost, name, n.query, n.form)
			require.Equal(t, http.StatusSeeOther, w.Code, where+w.Body.String())
			to := w.Header().Get("Location")
			if id := generated(to); id != "" {
				require.Equal(t, strings.ReplaceAll(well.Header().Get("Location"), generated(well.Header().Get("Location")), id)+"&unrecorded=1", to, where)
			} else {
				require.Equal(t, well.Header().Get("Location")+"&unrecorded=1", to, where)
			}
			page, query, _ := strings.Cut(to, "?")
			shown := send(h, http.MethodGet, page, query, nil).Body.String()
			require.Contains(t, shown, banner, where)
			require.NotContains(t, strings.ReplaceAll(shown, to, ""), "unrecorded=1", "the links of the page do not take it along")
			posts++
		}
	}
	require.Greater(t, posts, 20)
}

// generated returns the ID of a job that the page has made up, or "".
func generated(to string) string {
	_, query, _ := strings.Cut(to, "?")
	q, _ := url.ParseQuery(query)
	if id := q.Get("id"); q.Get("did") == "enqueue" && id != "fresh" {
		return id
	}
	return ""
}

// A bulk run that the audit lacks has not failed, and says so.
func TestBulkRunThatTheAuditLacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, h, _ := rightsWorld(t)
		require.NoError(t, q.Redis.Set(t.Context(), q.Prefix+":audit", "no list", 0).Err())
		w := send(h, http.MethodPost, "act", "topic=t&state=dead&id=d&all=1&do=revive", nil)
		require.Equal(t, "bulk?run=3", w.Header().Get("Location"), w.Body.String())
		time.Sleep(time.Minute) // in the bubble: it has ended
		var p struct {
			Run struct {
				Done       int64
				Error      string
				Unrecorded bool
			}
		}
		require.NoError(t, json.Unmarshal(send(h, http.MethodGet, "bulk.json", "run=3", nil).Body.Bytes(), &p))
		require.Empty(t, p.Run.Error)
		require.True(t, p.Run.Unrecorded)
		require.Positive(t, p.Run.Done)
		require.Contains(t, send(h, http.MethodGet, "bulk", "run=3", nil).Body.String(), "Done, but not recorded in the audit.")
	})
}

// What has failed is told apart from what the audit lacks.
func TestUnrecorded(t *testing.T) {
	silent := fmt.Errorf("apply: %w", delayq.ErrNotAudited)
	for name, test := range map[string]struct {
		err, failed error
		silent      bool
	}{
		"nothing": {}, "failed": {delayq.ErrNotFound, delayq.ErrNotFound, false}, "silent": {silent, nil, true},
		"one": {errors.Join(silent), nil, true}, "both": {errors.Join(delayq.ErrUnknownOutcome, silent), delayq.ErrUnknownOutcome, true},
	} {
		failed, lacks := unrecorded(test.err)
		require.Equal(t, test.silent, lacks, name)
		if test.failed == nil {
			require.NoError(t, failed, name)
			continue
		}
		require.ErrorIs(t, failed, test.failed, name)
		require.NotErrorIs(t, failed, delayq.ErrNotAudited, name)
	}
}
