package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// Without a token that has the right, nothing is done, and nobody learns what there is.
func TestRights(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		b.Enqueue("order:cancel", "1")
		b.Enqueue("secret", "1")
		for _, header := range []string{"", "Bearer", "Bearer x", "Basic " + w.tokens["all"], w.tokens["all"], "Bearer " + w.tokens["all"] + "x", "Bearer " + strings.Repeat("x", 10_000)} {
			for _, path := range []string{jobsPath + "/1", jobsPath + "/none", "/v1/none", "/"} {
				a := w.ask("", "GET", path, nil, "Authorization", header)
				w.is(a, 401, "unauthorized")
				require.Equal(b, `Bearer realm="delayq"`, a.header.Get("WWW-Authenticate"))
			}
		}
		w.is(w.ask("all", "GET", jobsPath+"/1", nil, "Authorization", "bearer "+w.tokens["all"]), 200, "")
		w.is(w.ask("", "GET", jobsPath+"/1?access_token="+w.tokens["all"], nil), 400, "bad-request")
		w.is(w.ask("all", "GET", jobsPath+"/1?token=x", nil), 422, "invalid")
		w.is(w.ask("all", "GET", jobsPath+"/1?a=%zz", nil), 400, "bad-request")
		lease := fmt.Sprintf(`[{"lease":%q,"outcome":"ack"}]`, w.took("secret", `{}`)[0]["lease"])
		for _, c := range []struct{ user, method, path, body string }{
			{"cook", "POST", jobsPath, `{}`}, {"boss", "POST", jobsPath, `{}`}, {"cook", "GET", jobsPath + "/1", ""}, {"cook", "DELETE", jobsPath + "/1", ""},
			{"cook", "PATCH", jobsPath + "/1", `{"process_in":1}`}, {"cook", "GET", jobsPath + "/1/result", ""}, {"shop", "POST", "/v1/topics/order:cancel/take", `{}`},
			{"shop", "GET", "/v1/topics/secret/jobs/1", ""}, {"shop", "GET", "/v1/topics/secret/jobs/none", ""}, {"boss", "DELETE", "/v1/topics/secret/jobs/1", ""},
			{"cook", "POST", "/v1/topics/secret/take", `{}`}, {"cook", "POST", "/v1/topics/secret/settle", lease}, {"boss", "POST", "/v1/topics/order:cancel/settle", lease},
			{"shop", "POST", "/v1/topics/order:cancel/extend", lease}, {"shop", "POST", "/v1/topics/order:cancel/inputs", `{}`},
		} {
			var body any
			if c.body != "" {
				body = c.body
			}
			w.is(w.ask(c.user, c.method, c.path, body), 403, "forbidden")
		}
		// A token of one topic cannot settle the lease of another one, whoever has told it.
		w.is(w.ask("cook", "POST", "/v1/topics/order:cancel/settle", lease), 409, "lost-lease")
		job := w.took("order:cancel", `{}`)[0]
		then := fmt.Sprintf(`[{"lease":%q,"outcome":"ack","then":[{"topic":"secret"}]}]`, job["lease"])
		w.is(w.ask("cook", "POST", "/v1/topics/order:cancel/settle", then), 403, "forbidden")
		a := w.is(w.ask("all", "PUT", jobsPath, `{}`), 405, "method")
		require.Equal(b, "POST", a.header.Get("Allow"))
		w.is(w.ask("all", "GET", "/v1/nothing", nil), 404, "no-route")
		require.Equal(b, "ok\n", w.is(w.ask("", "GET", "/healthz", nil), 200, "").raw)
		require.Equal(b, openAPI, w.is(w.ask("", "GET", "/v1/openapi.json", nil), 200, "").raw)
	})
}

// Bodies that are too large, too deep, broken or of another kind are refused.
func TestBodies(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		for body, want := range map[string]int{
			`{"payload":"` + strings.Repeat("x", 1<<20) + `"}`:                                413,
			`{"payload":` + strings.Repeat("[", 200_000) + strings.Repeat("]", 200_000) + `}`: 400,
			``: 400, `{`: 400, `{"id":`: 400, `{} {}`: 400, `[{}] x`: 400, `null`: 400, "{\"id\":\"\xff\"}": 400, `[null]`: 400, `"x"`: 422, `7`: 422,
		} {
			require.Equal(b, want, w.ask("shop", "POST", jobsPath, body).status, body[:min(len(body), 50)])
		}
		w.is(w.ask("shop", "POST", jobsPath, `{}`, "Content-Type", "application/x-www-form-urlencoded"), 415, "media-type")
		w.is(w.ask("shop", "POST", jobsPath, `{}`, "Content-Encoding", "gzip"), 415, "media-type")
		w.is(w.ask("shop", "POST", jobsPath, `{}`, "Content-Type", "Application/JSON; charset=utf-8"), 201, "")
	})
}

// Requests and leases that are too many are told to come again.
func TestBounds(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := newWorld(b.T, b.RDB, queuetest.Prefix, func(c *Config) { c.MaxWaiters, c.MaxLeases, c.MaxRequests = 2, 3, 1 })
		done := make(chan struct{}, 2)
		ctx, hangUp := context.WithCancel(b.Context())
		for range 2 {
			go func() {
				w.askIn(ctx, "all", "POST", "/v1/topics/mail/take", `{"wait":30}`)
				done <- struct{}{}
			}()
		}
		b.Pass(time.Second)
		w.is(w.ask("all", "POST", "/v1/topics/mail/take", `{}`), 429, "too-many")
		w.is(w.ask("all", "GET", "/v1/topics/mail/jobs/1/result", nil), 429, "too-many")
		hangUp()
		<-done
		<-done
		require.Zero(b, w.wanted)
		for i := range 5 {
			b.Enqueue("mail", fmt.Sprint(i))
		}
		jobs := w.took("mail", `{"max":100,"lease":600}`)
		require.Len(b, jobs, 3)
		w.is(w.ask("all", "POST", "/v1/topics/mail/take", `{}`), 429, "too-many")
		w.is(w.settles("mail", jobs[0], "ack", ""), 200, "")
		require.Len(b, w.took("mail", `{"max":2,"lease":600}`), 1)
		w.busy <- struct{}{} // a request that is under way
		w.is(w.ask("all", "GET", "/v1/topics/mail/jobs/1", nil), 429, "too-many")
		<-w.busy
	})
}

// While Redis is away, the answer is 503. What was settled then is settled when it is back.
func TestRedisIsAway(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t)
	w := newWorld(t, rs.Client(t), "q", nil)
	w.is(w.ask("all", "POST", "/v1/topics/mail/jobs", `[{"id":"1"},{"id":"2"}]`), 201, "")
	job := w.took("mail", `{"lease":600}`)[0]
	require.NoError(t, rs.Stop())
	settled := make(chan reply, 1)
	ctx, giveUp := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer giveUp()
	body := fmt.Sprintf(`[{"lease":%q,"outcome":"ack"}]`, job["lease"])
	go func() { settled <- w.askIn(ctx, "all", "POST", "/v1/topics/mail/settle", body) }()
	<-settled // by a client that has given up
	require.NoError(t, rs.Cont())
	w.is(w.ask("all", "POST", "/v1/topics/mail/settle", body), 200, "")
	require.NoError(t, rs.Kill())
	w.is(w.ask("all", "GET", "/v1/topics/mail/jobs/1", nil), 503, "unavailable")
	w.is(w.ask("all", "POST", "/v1/topics/mail/jobs", `{}`), 503, "")
	require.NoError(t, rs.Restart())
}

// Clients that send or read slowly are given up, and others are served meanwhile.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t)
	w := newWorld(t, rdb, redistest.Prefix(t), nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server, bounded := w.HTTPServer(l, slog.New(slog.DiscardHandler))
	require.Positive(t, server.ReadHeaderTimeout)
	require.Positive(t, server.ReadTimeout)
	require.Positive(t, server.WriteTimeout)
	require.Positive(t, server.IdleTimeout)
	require.Equal(t, w.MaxRequests+w.MaxWaiters+spareConns, cap(bounded.(*boundedListener).room))
	server.ReadHeaderTimeout, server.ReadTimeout = 100*time.Millisecond, 100*time.Millisecond
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(bounded) }()
	slow, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	_, err = io.WriteString(slow, "POST /v1/topics/a/jobs HTTP/1.1\r\nHost: x\r\n")
	require.NoError(t, err)
	// A take waits for longer than a request may take to arrive.
	_, got := w.post(t, l.Addr().String(), "all", "/v1/topics/mail/take", `{"wait":0.5}`)
	require.Equal(t, "{\"jobs\":[]}\n", got)
	_, err = bufio.NewReader(slow).ReadByte()
	require.ErrorIs(t, err, io.EOF, "the slow one is closed")
	require.NoError(t, slow.Close())
	require.NoError(t, server.Shutdown(t.Context()))
	require.ErrorIs(t, <-ended, http.ErrServerClosed)
	require.Empty(t, bounded.(*boundedListener).room)
}
