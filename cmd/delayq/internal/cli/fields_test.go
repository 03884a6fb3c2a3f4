package cli

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// jobViews are how the command line shows a job.
var jobViews = map[string]func(a *app, info *delayq.JobInfo) error{
	"job":           func(a *app, info *delayq.JobInfo) error { return a.showJob(a.stdout(), jobOf(info, true)) },
	"job -o wide":   func(a *app, info *delayq.JobInfo) error { return a.showJob(a.stdout(), jobOf(info, true)) },
	"job -o json":   showObject,
	"jobs":          showList,
	"jobs -o wide":  showList,
	"jobs -o jsonl": showList,
}

func showObject(a *app, info *delayq.JobInfo) error {
	return object(a, schemaJob, jobOf(info, true), info.ID, func(io.Writer) error { return nil })
}

func showList(a *app, info *delayq.JobInfo) error {
	return all(a, a.jobsView(info.State, false), []*jobRecord{jobOf(info, false)}, nil)
}

const (
	oneLine  = "a list has a line for each job; job shows it"
	ofOther  = "it shows the time of the state"
	ofWide   = "-o wide shows it"
	ofJSON   = "JSON has it"
	notRead  = "lists do not read payloads"
	onlyList = "only lists do not read a whole record"
)

// leftOut has the fields of a job that a view leaves out on purpose, and why.
var leftOut = map[string]map[string]string{
	"job":         {"Plan.Over": "one that has failed for good is over", "Raw": ofJSON, "Partial": onlyList, "Errors.Type": ofWide, "Errors.NextDue": ofWide, "Errors.TraceParent": ofWide, "Errors.Stack": ofWide},
	"job -o wide": {"Plan.Over": "one that has failed for good is over", "Raw": ofJSON, "Partial": onlyList},
	"job -o json": {},
	"jobs": {
		"Topic": "it is the argument", "Payload": notRead, "Headers": ofWide, "Key": ofWide, "Priority": oneLine, "Retries": ofWide, "Snoozes": oneLine, "EnqueuedAt": ofWide, "StartedAt": oneLine,
		"Schedule": oneLine, "Slot": oneLine, "State": "it is the flag --state", "DueReason": ofWide, "BurstBegan": oneLine, "BurstEnds": oneLine, "LeaseEnd": ofOther, "BuriedAt": ofOther, "FinishedAt": ofOther,
		"KeptUntil": oneLine, "BackoffFirst": oneLine, "BackoffLimit": oneLine, "Timeout": oneLine, "ExpireAt": oneLine, "Retention": oneLine, "Partial": ofWide, "Raw": ofJSON,
		"Errors.Attempt": oneLine, "Errors.At": oneLine, "Errors.Duration": oneLine, "Errors.Server": oneLine, "Errors.Kind": oneLine, "Errors.Type": oneLine,
		"Errors.Stack": oneLine, "Errors.NextDue": oneLine, "Errors.TraceParent": oneLine,
		"Stage": oneLine, "Stages": oneLine, "Plan.Due": oneLine, "Plan.Over": oneLine, "Plan.FailedAt": oneLine, "Plan.Attempt": oneLine,
		"Plan.Kind": oneLine, "Plan.Message": oneLine, "Progress": ofWide, "Steps": oneLine, "Flow": oneLine,
	},
	"jobs -o wide": {
		"Priority": oneLine, "BurstBegan": oneLine, "BurstEnds": oneLine,
		"Topic": "it is the argument", "Payload": notRead, "Snoozes": oneLine, "StartedAt": oneLine, "Schedule": oneLine, "Slot": oneLine, "LeaseEnd": ofOther, "BuriedAt": ofOther,
		"FinishedAt": ofOther, "KeptUntil": oneLine, "BackoffFirst": oneLine, "BackoffLimit": oneLine, "Timeout": oneLine, "ExpireAt": oneLine, "Retention": oneLine, "Raw": ofJSON,
		"Errors.Attempt": oneLine, "Errors.At": oneLine, "Errors.Duration": oneLine, "Errors.Server": oneLine, "Errors.Kind": oneLine, "Errors.Type": oneLine,
		"Errors.Stack": oneLine, "Errors.NextDue": oneLine, "Errors.TraceParent": oneLine,
		"Stage": oneLine, "Stages": oneLine, "Plan.Due": oneLine, "Plan.Over": oneLine, "Plan.FailedAt": oneLine, "Plan.Attempt": oneLine,
		"Plan.Kind": oneLine, "Plan.Message": oneLine, "Steps": oneLine, "Flow": oneLine,
	},
	"jobs -o jsonl": {"Payload": notRead},
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
		Errors: []delayq.AttemptError{{Attempt: 1, At: at, Kind: delayq.KindError, Message: "no"}},
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
	default:
		if v.Kind() == reflect.String {
			v.SetString("other")
			return
		}
		v.Set(reflect.ValueOf(errors.New("other"))) // of an error
	}
}

// Each field of a job changes what each view shows, or is left out on purpose.
func TestEveryFieldOfAJobIsShown(t *testing.T) {
	format := func(view string) string {
		if _, format, is := strings.Cut(view, "-o "); is {
			return format
		}
		return formatTable
	}
	fields := jobFields()
	require.Greater(t, len(fields), 35)
	for view, show := range jobViews {
		shown := func(info *delayq.JobInfo) string {
			var out bytes.Buffer
			a := newApp(&out)
			a.format, a.timeStyle = format(view), timeUTC
			require.NoError(t, show(a, info), view)
			require.NoError(t, a.flush())
			return out.String()
		}
		out := maps.Clone(leftOut[view])
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
			require.Equal(t, !left, shown(before) != shown(after), "%s of %s (%s):\n%s", f.name, view, why, shown(after))
		}
		require.Empty(t, slices.Collect(maps.Keys(out)), "%s: there are no such fields", view)
	}
	require.Len(t, leftOut, len(jobViews), "of each view")
}

// A list does not read large records, and does not say what they hold.
func TestListsSayWhatTheyHaveNotRead(t *testing.T) {
	inWorld(t, func(w *world) {
		_, err := w.Client.Enqueue(w.Context(), "t", "large", make([]byte, 20_000), delayq.ProcessIn(time.Hour), delayq.Retry(5))
		require.NoError(w, err)
		r := w.ok("jobs", "t", "-o", "jsonl")
		require.Contains(w, r, `"partial":true`)
		require.NotContains(w, r, "backoff")
		require.Regexp(w, `large  scheduled  -  +\S+ \S+  +-  +1  +-  +`, w.ok("jobs", "t", "-o", "wide"))
		require.NotContains(w, w.ok("job", "t", "large", "-o", "json"), "partial")
		require.Regexp(w, `(?m)^retries +5$`, w.ok("job", "t", "large"))
		require.Regexp(w, `(?m)^retries +unlimited, unless its handler sets it$`, w.ok("job", "mail:welcome", "wait-1"))
	})
}
