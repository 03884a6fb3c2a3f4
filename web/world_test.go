package web_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/web"
)

// The inert texts: if one of them is in a page unescaped, a browser would run it.
const (
	evilID    = `<script>alert(1)</script>"'><img src=x onerror=alert(1)>`
	evilBytes = "a/../b\x00\xff\x01?&#%;\r\n"
)

// world returns a queue with something of everything in it.
func world(t testing.TB) *delayqtest.TestQueue {
	q := delayqtest.Start(t)
	ctx := t.Context()
	put := func(topic, id, payload string, opts ...delayq.JobOption) {
		t.Helper()
		_, err := q.Client.Enqueue(ctx, topic, id, []byte(payload), opts...)
		require.NoError(t, err)
	}
	fail := errors.New(`smtp: 550 mailbox "unavailable" <script>alert(2)</script>`)
	stop := q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("mail:welcome", func(context.Context, *delayq.Job) error { return delayq.Permanent(fail) })
		s.HandlerFunc("report", func(_ context.Context, job *delayq.Job) error {
			return job.SetOutput([]byte("3 plain rows\n<b>\x1b[0m\xff\n"))
		})
	})
	for _, id := range []string{"u-1", "u-2", "u-3", evilID, evilBytes} {
		put("mail:welcome", id, `{"user":77812,"email":"a@example.com","big":12345678901234567890,"evil":"</pre><script>alert(3)</script>"}`)
	}
	put("report", "done-1", "plain", delayq.Retention(time.Hour), delayq.Header("tenant", "42"))
	require.NoError(t, q.Client.Schedule(ctx, "report", "nightly <b>", delayq.Cron("0 3 * * *", "Europe/Berlin"), []byte("{}")))
	q.Advance(time.Minute)
	stop()
	for _, id := range []string{"o-1", "o-2", "o-3", "o-4", evilID} {
		put("order:cancel", id, "\x82\xa2id\x07\xa5email\xa3a@b", delayq.ProcessIn(30*time.Minute), delayq.Header("traceparent", "<b>"))
	}
	put("refund <b>/poll", "r-1", "", delayq.ProcessIn(0))
	for i, key := range []string{"t-1", "t-1", "t-2", evilBytes} {
		put("invoice", fmt.Sprintf("i-%d", i+1), "", delayq.ProcessIn(0), delayq.Key(key))
	}
	put("invoice", "i-5", "", delayq.ProcessIn(0))
	require.NoError(t, q.Client.SetKeyLimits(ctx, "invoice", "t-1", delayq.KeyLimits{Weight: 3}))
	require.NoError(t, q.Client.PauseKey(ctx, "invoice", "t-1"))
	require.NoError(t, q.Client.HoldKey(ctx, "invoice", evilBytes, time.Hour))
	require.NoError(t, q.Client.Pause(delayq.WithActor(ctx, "alice <i>"), "order:cancel", delayq.Pause{By: "alice <i>", Reason: "bank is down"}))
	return q
}

// page returns a handler of the queue.
func page(t testing.TB, q *delayqtest.TestQueue, opts ...web.Option) *web.Handler {
	h, err := web.New(q.Inspector, opts...)
	require.NoError(t, err)
	t.Cleanup(h.Close)
	return h
}

// get asks a handler for a page.
func get(t testing.TB, h http.Handler, target string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// post sends a form to a handler, as a browser does from a page of the same origin.
func post(t testing.TB, h http.Handler, target string, form url.Values, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// link returns a page with parameters: names and values by turns.
func link(page string, pairs ...string) string {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		q.Add(pairs[i], pairs[i+1])
	}
	return "/" + page + "?" + q.Encode()
}

func body(t testing.TB, r *http.Response) string {
	b, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	return string(b)
}

// A between calls a function before the nth command of a name.
type between struct {
	name string
	n    int
	call func()
	done bool
}

func (b *between) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b *between) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		b.before(cmd)
		return next(ctx, cmd)
	}
}

func (b *between) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		b.before(cmds...)
		return next(ctx, cmds)
	}
}

func (b *between) before(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if b.done || !strings.HasPrefix(cmd.Name(), b.name) {
			continue
		}
		if b.n--; b.n < 0 {
			b.done = true // what it calls has commands too
			b.call()
		}
	}
}
