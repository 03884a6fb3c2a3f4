package web

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

const (
	noBytes  = "nobody can read these bytes here; delayq job has them"
	onlyList = "only lists do not read a whole record"
)

// leftOut has the fields of a job that its page leaves out on purpose, and why. "json" is that page
// for programs.
var leftOut = map[string]map[string]string{
	"page": {"Plan.Over": "one that has failed for good is over", "Raw": noBytes, "Partial": onlyList, "PayloadSize": "it shows the payload, or to those who may not see it its size"},
	"json": {"Raw": noBytes},
}

// A jobField is a field of delayq.JobInfo, or of its errors.
type jobField struct {
	name string
	of   func(info *delayq.JobInfo) reflect.Value
}

// jobFields returns the exported fields of delayq.JobInfo with those of its Job and of an error.
func jobFields() (list []jobField) {
	var add func(t reflect.Type, prefix string, of func(info *delayq.JobInfo) reflect.Value)
	add = func(t reflect.Type, prefix string, of func(info *delayq.JobInfo) reflect.Value) {
		for i := range t.NumField() {
			f := t.Field(i)
			value := func(info *delayq.JobInfo) reflect.Value { return of(info).Field(i) }
			switch {
			case f.Anonymous:
				add(f.Type, prefix, value)
			case f.IsExported() && f.Type == reflect.TypeFor[[]delayq.AttemptError]():
				add(reflect.TypeFor[delayq.AttemptError](), f.Name+".", func(info *delayq.JobInfo) reflect.Value { return value(info).Index(0) })
			case f.IsExported() && f.Type == reflect.TypeFor[[]delayq.PlanStage]():
				add(reflect.TypeFor[delayq.PlanStage](), f.Name+".", func(info *delayq.JobInfo) reflect.Value { return value(info).Index(0) })
			case f.IsExported():
				list = append(list, jobField{prefix + f.Name, value})
			}
		}
	}
	add(reflect.TypeFor[delayq.JobInfo](), "", func(info *delayq.JobInfo) reflect.Value { return reflect.ValueOf(info).Elem() })
	return list
}

// plainJob returns a job with an error.
func plainJob() *delayq.JobInfo {
	at := time.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC)
	return &delayq.JobInfo{
		Job:  delayq.Job{Topic: "t", ID: "j", Attempt: 2, Retries: 5, Stage: 2, Stages: 3, EnqueuedAt: at, Due: at},
		Plan: []delayq.PlanStage{{Due: at, FailedAt: at, Attempt: 1, Kind: delayq.KindError, Message: "no"}}, State: delayq.StateScheduled,
		BackoffFirst: 2 * time.Second, BackoffLimit: time.Hour, Errors: []delayq.AttemptError{{Attempt: 1, At: at, Kind: delayq.KindError, Message: "no"}},
	}
}

// change gives a field another value.
func change(v reflect.Value) {
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)))
	case time.Duration:
		v.Set(reflect.ValueOf(37 * time.Minute))
	case map[string]string:
		v.Set(reflect.ValueOf(map[string]string{"name": "value"}))
	case []byte:
		v.SetBytes([]byte("other"))
	case []string:
		v.Set(reflect.ValueOf([]string{"other"}))
	case delayq.JobRef:
		v.Set(reflect.ValueOf(delayq.JobRef{Topic: "done", ID: "last"}))
	case *delayq.Progress:
		v.Set(reflect.ValueOf(&delayq.Progress{Done: 1, Total: 2, Text: "half", At: time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)}))
	case bool:
		v.SetBool(true)
	case int:
		v.SetInt(7)
	case delayq.State:
		v.SetString(string(delayq.StateReady))
	case delayq.DueReason:
		v.SetString(string(delayq.DueSnooze))
	case delayq.ErrorKind:
		v.SetString(string(delayq.KindPanic))
	default:
		if v.Kind() == reflect.String {
			v.SetString("other")
			return
		}
		v.Set(reflect.ValueOf(errors.New("other"))) // of an error
	}
}

// Each field of a job changes what its page shows, or is left out on purpose.
func TestEveryFieldOfAJobIsOnItsPage(t *testing.T) {
	h, err := New(delayqtest.Start(t).Inspector)
	require.NoError(t, err)
	t.Cleanup(h.Close)
	shown := func(info *delayq.JobInfo, page string) string {
		w := httptest.NewRecorder()
		v := h.newView(w, httptest.NewRequest(http.MethodGet, "/job?topic=t&id=j", nil))
		v.Page, v.route, v.json = "job", routes["job"], page == "json"
		require.NoError(t, v.parse())
		v.Topic = info.Topic
		v.show(h.jobPage(v, info.ID, &look{&delayq.Explanation{Job: info}, h.detail(info, *info)}, true))
		require.Equal(t, http.StatusOK, w.Code)
		return w.Body.String()
	}
	fields := jobFields()
	require.Greater(t, len(fields), 35)
	for page, reasons := range leftOut {
		out := maps.Clone(reasons)
		for _, f := range fields {
			before, after := plainJob(), plainJob()
			if f.name == "Raw" {
				before.Undecodable, after.Undecodable = io.EOF, io.EOF
			}
			if f.name == "Priority" {
				before.Key, after.Key = "k", "k"
			}
			change(f.of(after))
			why, left := out[f.name]
			delete(out, f.name)
			require.Equal(t, !left, shown(before, page) != shown(after, page), "%s of %s (%s)", f.name, page, why)
		}
		require.Empty(t, slices.Collect(maps.Keys(out)), "%s: there are no such fields", page)
	}
}

// The page of a job says what holds in its runs, who has set it, and how many retries are left.
func TestJobPageSaysWhatHolds(t *testing.T) {
	q := delayqtest.Start(t)
	q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("t", func(context.Context, *delayq.Job) error { return delayq.RetryIn(time.Hour, errors.New("no")) }, delayq.Defaults(delayq.Retry(25)))
	})
	for id, opts := range map[string][]delayq.JobOption{"own": {delayq.Retry(5), delayq.Timeout(time.Minute)}, "handler": nil} {
		_, err := q.Client.Enqueue(t.Context(), "t", id, nil, opts...)
		require.NoError(t, err)
	}
	_, err := q.Client.Enqueue(t.Context(), "none", "open", nil, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	q.Advance(time.Minute)
	h, err := New(q.Inspector)
	require.NoError(t, err)
	t.Cleanup(h.Close)
	for id, want := range map[string]struct {
		left int
		rows []string
	}{
		"own":     {4, []string{"retries</dt><dd>5 <span class=\"note\">by the job itself<", "timeout</dt><dd>1m0s <span class=\"note\">by the job itself<", "retries left</dt><dd>4<"}},
		"handler": {24, []string{"retries</dt><dd>25 <span class=\"note\">by its handler<", "backoff</dt><dd>2s to 1h8m16s <span", "timeout</dt><dd>none <span", "retries left</dt><dd>24<"}},
	} {
		html := send(h, http.MethodGet, "job", "topic=t&id="+id, nil).Body.String()
		for _, row := range want.rows {
			require.Contains(t, html, "<dt>"+row, id)
		}
		var p struct {
			Job struct {
				Left int `json:"retries_left"`
			}
			Settings []settingRow
		}
		require.NoError(t, json.Unmarshal(send(h, http.MethodGet, "job.json", "topic=t&id="+id, nil).Body.Bytes(), &p))
		require.Equal(t, want.left, p.Job.Left, id)
		require.Len(t, p.Settings, 4)
	}
	html := send(h, http.MethodGet, "job", "topic=none&id=open", nil).Body.String()
	require.Contains(t, html, "<dt>retries</dt><dd>unlimited <span class=\"note\">unless its handler sets it<")
	require.Contains(t, html, "<dt>retries left</dt><dd>unlimited<")
}
