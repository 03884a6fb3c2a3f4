package gateway

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/record"
)

func inWorld(t *testing.T, test func(b *queuetest.Bubble, w *world)) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) { test(b, newWorld(b.T, b.RDB, queuetest.Prefix, nil)) })
}

const jobsPath = "/v1/topics/order:cancel/jobs"

// A job has all options that its fields give it, and is read back with them.
func TestEnqueueAndGet(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		a := w.is(w.ask("shop", "POST", jobsPath, `{
			"id": "a/b", "payload": {"big": 12345678901234567890, "t": "<ü>"}, "process_in": "1h", "expire_in": 7200, "retry": 3,
			"backoff": {"first": 1.5, "limit": "1m"}, "timeout": 30, "retention": "1d", "headers": {"tenant": "7"}, "key": "k", "priority": -2
		}`), 201, "")
		require.Equal(b, jobsPath+"/a%2Fb", a.header.Get("Location"))
		require.Equal(b, "a/b", a.body["id"])
		info := b.Get("order:cancel", "a/b")
		require.Equal(b, `{"big": 12345678901234567890, "t": "<ü>"}`, string(info.Payload), "byte for byte")
		require.Equal(b, []any{3, 1500 * time.Millisecond, time.Minute, 30 * time.Second, 24 * time.Hour, "k", -2 * time.Second, "7"}, []any{
			info.Retries, info.BackoffFirst, info.BackoffLimit, info.Timeout, info.Retention, info.Key, info.Priority, info.Headers["tenant"],
		})
		require.Equal(b, time.Hour, info.Due.Sub(b.Began).Round(time.Second))
		require.Equal(b, 2*time.Hour, info.ExpireAt.Sub(b.Began).Round(time.Second))

		a = w.is(w.ask("shop", "GET", jobsPath+"/a%2Fb", nil), 200, "")
		require.NotEmpty(b, a.header.Get("ETag"))
		require.Contains(b, a.raw, `"payload":{"big":12345678901234567890,"t":"<ü>"}`)
		require.Equal(b, "scheduled", a.body["state"])
		require.Equal(b, map[string]any{"first": 1.5, "limit": 60.0}, a.body["backoff"])
		require.EqualValues(b, -2, a.body["priority"])
		raw := w.is(w.ask("boss", "GET", jobsPath+"/a%2Fb?base64=true", nil), 200, "").body["payload_base64"]
		require.NotEmpty(b, raw)
		w.is(w.ask("all", "GET", jobsPath+"/none", nil), 404, "not-found")
		dup := w.is(w.ask("shop", "POST", jobsPath, `{"id":"a/b"}`), 409, "duplicate")
		require.Equal(b, "scheduled", dup.body["state"])

		at := b.Began.Add(time.Hour).UTC()
		w.is(w.ask("all", "POST", "/v1/topics/x/jobs", map[string]any{"id": "1", "payload_base64": []byte{0xff, 0}, "process_at": at.Unix(), "expire_at": at.Add(time.Hour)}), 201, "")
		require.Equal(b, []byte{0xff, 0}, b.Get("x", "1").Payload)
		require.True(b, b.Get("x", "1").Due.Equal(at.Truncate(time.Second)))
		w.is(w.ask("all", "POST", "/v1/topics/x/jobs", map[string]any{"id": "2", "process_at_each": []any{at, at.Add(time.Hour)}}), 201, "")
		require.Len(b, b.Get("x", "2").Plan, 2)
	})
}

// What becomes of a job that has the ID is a field, too.
func TestEnqueueMeetsAJob(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		put := func(status int, kind, fields string) reply {
			b.Helper()
			return w.is(w.ask("shop", "POST", jobsPath, `{"id":"1",`+fields+`}`), status, kind)
		}
		put(201, "", `"payload":1,"process_in":3600`)
		put(409, "duplicate", `"replace":"dead"`)
		put(201, "", `"payload":2,"latest":true`)
		require.Equal(b, "2", string(b.Get("order:cancel", "1").Payload))
		put(201, "", `"payload":3,"replace":"unless_running","process_in":60`)
		put(201, "", `"payload":4,"debounce":{"wait":5,"longest":"1m"}`)
		require.Equal(b, delayq.DueDebounce, b.Get("order:cancel", "1").DueReason)
		tag := w.ask("shop", "GET", jobsPath+"/1", nil).header.Get("ETag")
		again := fmt.Sprintf(`"payload":5,"replace":"any","if_match":%q`, tag)
		put(201, "", again)
		put(409, "changed", again)
		w.is(w.ask("shop", "DELETE", jobsPath+"/1", nil), 200, "")
		put(201, "", `"unique_for":60`)
		w.is(w.ask("shop", "DELETE", jobsPath+"/1", nil), 200, "")
		closed := put(409, "duplicate", `"payload":6`)
		require.Equal(b, "tomb", closed.body["state"])
		require.NotEmpty(b, closed.body["until"])
	})
}

// Each field that is out of its bounds is named, with the bound.
func TestInvalidFields(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		for request, fields := range map[string][]string{
			`{"retry":-2,"timeout":0,"key":"","priority":"2d"}`: {"retry", "timeout", "key", "priority"},
			`{"priority":1}`:                    {"priority"},
			`{"payload":1,"payload_base64":""}`: {"payload"},
			`{"process_in":1,"process_at":1,"expire_in":1,"expire_at":1}`: {"process_at", "expire_at"},
			`{"replace":"yes"}`:                                       {"replace"},
			`{"latest":true,"replace":"any"}`:                         {"replace"},
			`{"id":"` + strings.Repeat("x", 1025) + `"}`:              {"id"},
			`{"topic":"other"}`:                                       {"topic"},
			`{"if_match":"x"}`:                                        {"if_match"},
			`{"retrry":1}`:                                            {"retrry"},
			`{"retry":"many"}`:                                        {"retry"},
			`{"process_in":"soon"}`:                                   {"process_in"},
			`{"process_in":null,"backoff":{"first":[],"limit":1}}`:    {"backoff.first"},
			`{"process_in":1e30}`:                                     {"process_in"},
			`{"process_at":"tomorrow"}`:                               {"process_at"},
			`{"process_at_each":[1,"x"]}`:                             {"process_at_each[1]"},
			`{"id":"\ud800"}`:                                         {"id"},
			`{"headers":{"a":"` + strings.Repeat("x", 17<<10) + `"}}`: {"headers"},
			`{"debounce":{"wait":1,"longest":0}}`:                     {"debounce"},
		} {
			a := w.is(w.ask("shop", "POST", jobsPath, request), 422, "invalid")
			require.Equal(b, fields, a.fields(), request[:min(len(request), 100)])
			require.NotEmpty(b, a.body["detail"])
		}
		require.Equal(b, "retry", w.ask("shop", "POST", jobsPath, `{"retry":-2}`).fields()[0])
		require.Contains(b, w.ask("shop", "POST", jobsPath, `{"retry":-2}`).raw, "must be from 0 to 2147483647")
		for _, path := range []string{"/v1/topics/a%7Bb/jobs", "/v1/topics/a*/jobs", "/v1/topics//jobs"} {
			require.Equal(b, []string{"topic"}, w.is(w.ask("all", "POST", path, `{}`), 422, "invalid").fields())
		}
		topics, err := b.Inspector.Topics(b.Context())
		require.NoError(b, err)
		require.Empty(b, topics, "nothing was written")
	})
}

// Of an array each job has an answer of its own.
func TestEnqueueMany(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		a := w.is(w.ask("shop", "POST", jobsPath, ` [{"id":"1"},{"id":"2","payload":"x"}]`), 201, "")
		require.Len(b, a.body["results"], 2)
		a = w.is(w.ask("shop", "POST", jobsPath, `[{"id":"1"},{"id":"3"},{"retry":-5},{"what":1},{"if_match":"x","replace":"any"}]`), 207, "")
		var got []any
		for _, r := range a.body["results"].([]any) {
			p, _ := r.(map[string]any)["problem"].(map[string]any)
			got = append(got, p["status"])
		}
		require.Equal(b, []any{409.0, nil, 422.0, 422.0, 422.0}, got)
		a = w.is(w.ask("shop", "POST", jobsPath, `[{"id":"1"},{"id":"2"}]`), 409, "duplicate")
		require.Len(b, a.body["results"], 2)
		w.is(w.ask("shop", "POST", jobsPath, `[]`), 422, "invalid")
		w.is(w.ask("shop", "POST", jobsPath, "["+strings.Repeat("{},", mostJobs)+"{}]"), 422, "invalid")
		many := w.is(w.ask("shop", "POST", jobsPath, "["+strings.Repeat("{},", mostJobs-1)+"{}]"), 201, "")
		require.Len(b, many.body["results"], mostJobs)
	})
}

// IDs are any text, also one that paths have other uses for.
func TestIDs(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		for _, id := range []string{"a/b", "..", ".", "a//b", "ü/漢", "%2F", "a?b#c", " ", "a\nb", "+", "a;b", "\x00", strings.Repeat("x", 1024)} {
			a := w.is(w.ask("shop", "POST", jobsPath, map[string]any{"id": id, "process_in": 60}), 201, "")
			for _, path := range []string{a.header.Get("Location"), jobsPath + "/" + url.PathEscape(id)} {
				require.Equal(b, id, w.is(w.ask("shop", "GET", path, nil), 200, "").body["id"])
			}
			w.is(w.ask("shop", "DELETE", a.header.Get("Location"), nil), 200, "")
		}
		b.Enqueue("order:cancel", "\xff\x00")
		a := w.is(w.ask("shop", "GET", jobsPath+"/%FF%00", nil), 200, "")
		require.Equal(b, "/wA=", a.body["id_base64"])
		require.Equal(b, "/wA=", w.took("order:cancel", `{}`)[0]["id_base64"])
		w.is(w.ask("shop", "GET", jobsPath+"/", nil), 422, "invalid")
	})
}

// A job is moved, revived, buried and cancelled, and with If-Match only as it was read.
func TestPatchAndCancel(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		b.Enqueue("order:cancel", "1", delayq.ProcessIn(time.Hour), delayq.Key("k"))
		path := jobsPath + "/1"
		tag := w.ask("shop", "GET", path, nil).header.Get("ETag")
		w.is(w.ask("shop", "PATCH", path, `{"process_in":"2h"}`, "If-Match", tag), 204, "")
		require.Equal(b, 2*time.Hour, b.Get("order:cancel", "1").Due.Sub(b.Began).Round(time.Second))
		w.is(w.ask("shop", "PATCH", path, `{"process_in":"3h"}`, "If-Match", tag), 409, "changed")
		w.is(w.ask("shop", "DELETE", path, nil, "If-Match", tag), 409, "changed")
		w.is(w.ask("shop", "PATCH", path, `{"priority":5}`), 204, "")
		require.Equal(b, 5*time.Second, b.Get("order:cancel", "1").Priority)
		at := b.Began.Add(5 * time.Hour).UTC().Format(time.RFC3339)
		w.is(w.ask("shop", "PATCH", path, `{"process_at":"`+at+`"}`), 204, "")
		for _, wrong := range []string{`{}`, `{"revive":false}`, `{"process_in":1,"priority":1}`, `{"priority":"3d"}`} {
			w.is(w.ask("boss", "PATCH", path, wrong), 422, "invalid")
		}
		w.is(w.ask("shop", "PATCH", path, `{"bury":"no"}`), 403, "forbidden")
		w.is(w.ask("boss", "PATCH", path, `{"bury":"no"}`), 204, "")
		a := w.is(w.ask("shop", "GET", path, nil), 200, "")
		require.Equal(b, "dead", a.body["state"])
		require.Equal(b, "no", a.body["errors"].([]any)[0].(map[string]any)["message"])
		w.is(w.ask("shop", "PATCH", path, `{"process_in":1}`), 409, "dead")
		w.is(w.ask("boss", "PATCH", path, `{"revive":true}`), 204, "")
		require.Equal(b, "ready", w.is(w.ask("shop", "DELETE", path+"?tombstone=60", nil), 200, "").body["state"])
		w.is(w.ask("shop", "DELETE", path, nil), 404, "not-found")
		w.is(w.ask("shop", "POST", jobsPath, `{"id":"1"}`), 409, "duplicate")
		w.is(w.ask("shop", "DELETE", path+"?tombstone=x", nil), 422, "invalid")
		audit, err := b.Inspector.Audit(b.Context(), 10)
		require.NoError(b, err)
		actors := map[string]bool{}
		for _, entry := range audit {
			actors[entry.Actor] = true
		}
		require.Equal(b, map[string]bool{"shop": true, "boss": true}, actors)

		b.Enqueue("order:cancel", "2")
		w.took("order:cancel", `{}`)
		w.is(w.ask("shop", "PATCH", jobsPath+"/2", `{"process_in":1}`), 409, "running")
	})
}

// An act that is done and not in the audit is answered as done: it must not be repeated.
func TestGatewayWithoutAudit(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		b.Enqueue("order:cancel", "1", delayq.ProcessIn(time.Hour))
		require.NoError(b, b.RDB.Set(b.Context(), queuetest.Prefix+":audit", "of another type", 0).Err())
		w.is(w.ask("shop", "PATCH", jobsPath+"/1", `{"process_in":"2h"}`), 204, "")
		require.Equal(b, 2*time.Hour, b.Get("order:cancel", "1").Due.Sub(b.Began).Round(time.Second))
		w.is(w.ask("shop", "DELETE", jobsPath+"/1", nil), 200, "")
		w.is(w.ask("shop", "GET", jobsPath+"/1", nil), 404, "not-found")
	})
}

// A result is waited for, as long as it is asked for.
func TestResult(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		path := func(id, more string) string { return jobsPath + "/" + id + "/result" + more }
		b.Enqueue("order:cancel", "1")
		began := time.Now()
		a := w.is(w.ask("shop", "GET", path("1", "?wait=30"), nil), 202, "")
		require.Equal(b, false, a.body["ended"])
		require.Equal(b, 30*time.Second, time.Since(began))
		done := make(chan reply, 1)
		go func() { done <- w.ask("shop", "GET", path("1", "?wait=1m"), nil) }()
		job := w.took("order:cancel", `{}`)[0]
		w.is(w.settles("order:cancel", job, "ack", `,"output":{"sum":3}`), 200, "")
		a = w.is(<-done, 200, "")
		require.Equal(b, map[string]any{"sum": 3.0}, a.body["output"])
		require.Equal(b, true, a.body["ended"])

		b.Enqueue("order:cancel", "2")
		go func() { done <- w.ask("shop", "GET", path("2", "?wait=10"), nil) }()
		b.Pass(time.Second)
		w.is(w.ask("shop", "DELETE", jobsPath+"/2", nil), 200, "")
		w.is(<-done, 410, "gone")
		b.Enqueue("order:cancel", "3")
		w.is(w.settles("order:cancel", w.took("order:cancel", `{}`)[0], "bury", `,"error":"no"`), 200, "")
		w.is(w.ask("boss", "GET", path("3", ""), nil), 409, "dead")
		w.is(w.ask("shop", "GET", path("none", ""), nil), 404, "not-found")
		for _, wrong := range []string{"?wait=61", "?wait=-1", "?wait=x", "?base64=2"} {
			w.is(w.ask("shop", "GET", path("3", wrong), nil), 422, "invalid")
		}
	})
}

// A flow is started, its steps are taken, and the last one sees what they have made.
func TestFlow(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		w.took("home", `{"wait":1}`) // so that its server passes on the steps
		a := w.is(w.ask("all", "POST", "/v1/flows", `{"topic":"home","id":"f","deadline":"1h","steps":[
			{"topic":"part","payload":1},{"topic":"part","id":"own","payload":2,"after":[0],"ignore_failures":true}
		]}`), 201, "")
		require.Equal(b, "f", a.body["id"])
		require.Equal(b, map[string]any{"topic": "part", "id": "own"}, a.body["steps"].([]any)[1])
		for _, out := range []string{`{"n":1}`, `"two"`} {
			job := w.took("part", `{}`)[0]
			require.Equal(b, map[string]any{"topic": "home", "id": "f"}, job["flow"])
			w.is(w.settles("part", job, "ack", `,"output":`+out), 200, "")
		}
		last := w.took("home", `{}`)[0]
		in := w.is(w.ask("all", "POST", "/v1/topics/home/inputs", map[string]any{"lease": last["lease"]}), 200, "")
		text, err := json.Marshal(in.body["inputs"])
		require.NoError(b, err)
		require.Contains(b, string(text), `{"n":1}`)
		require.Contains(b, string(text), `"two"`)
		w.is(w.settles("home", last, "ack", ""), 200, "")
		w.is(w.ask("all", "POST", "/v1/topics/home/inputs", map[string]any{"lease": last["lease"]}), 409, "settled")
		w.is(w.ask("all", "POST", "/v1/topics/home/inputs", `{"lease":"x"}`), 409, "lost-lease")

		for request, fields := range map[string][]string{
			`{"topic":"home","steps":[]}`:                                                {"steps"},
			`{"topic":"home","steps":[{"topic":"part","retry":-3}]}`:                     {"steps[0].retry"},
			`{"topic":"a{","steps":[{"topic":"part"}]}`:                                  {"topic"},
			`{"topic":"home","steps":[{"topic":"part","after":[7]}]}`:                    {"steps[0].after"},
			`{"topic":"home","steps":[{"topic":"part","process_in":"x"}]}`:               {"steps[0].process_in"},
			`{"topic":"home","steps":[{"topic":"part","if_match":"x","replace":"any"}]}`: {"steps[0].if_match"},
		} {
			require.Equal(b, fields, w.is(w.ask("all", "POST", "/v1/flows", request), 422, "invalid").fields(), request)
		}
		w.is(w.ask("all", "POST", "/v1/flows", `{"topic":"home","deadline":0.1,"steps":[{"topic":"part","process_in":5}]}`), 422, "invalid")
		b.Enqueue("home", "g")
		w.is(w.ask("all", "POST", "/v1/flows", `{"topic":"home","id":"g","deadline":60,"steps":[{"topic":"part"}]}`), 409, "duplicate")
		forbidden := w.is(w.ask("shop", "POST", "/v1/flows", `{"topic":"order:x","deadline":60,"steps":[{"topic":"part"}]}`), 403, "forbidden")
		require.Equal(b, []string{"steps[0].topic"}, forbidden.fields())
	})
}

// JSON halves of characters do not make one ID of two.
func TestText(t *testing.T) {
	for in, want := range map[string]string{`"a"`: "a", `"\ufffd"`: "\ufffd", "\"\ufffd\"": "\ufffd", `"\ud83d\ude00"`: "😀"} {
		var got text
		require.NoError(t, json.Unmarshal([]byte(in), &got))
		require.EqualValues(t, want, got)
	}
	for _, in := range []string{`"\ud800"`, `"\udc00x"`, `1`, `null`} {
		require.Error(t, json.Unmarshal([]byte(in), new(text)), in)
	}
	require.Equal(t, 64<<10, record.MaxOutput)
}
