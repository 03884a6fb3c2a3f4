package cli

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// probe runs health with arguments.
func probe(ctx context.Context, args ...string) result {
	var out, errs bytes.Buffer
	p := newApp(&out).process
	p.err = &output{Writer: &errs}
	p.args = append([]string{"health"}, args...)
	code := run(ctx, p)
	return result{out.String(), errs.String(), code}
}

// health says what a server says. Every failure is 1, because Docker knows no other one.
func TestHealthAsksAServer(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := queuetest.NewServer(rdb, redistest.Prefix(t))
		s.HandlerFunc("t", queuetest.Nothing)
		web := httptest.NewServer(http.StripPrefix("/delayq", delayq.HealthHandler(s)))
		defer web.Close()
		require.Equal(t, result{"ok\n", "", exitDone}, probe(t.Context(), web.URL+"/delayq/livez"))
		require.Equal(t, result{
			"the server has not been started\n", "error: " + web.URL + "/delayq/readyz: status 503 Service Unavailable\n", exitError,
		}, probe(t.Context(), web.URL+"/delayq/readyz"))

		ctx, end := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		<-s.Ready()
		require.Equal(t, result{"ok\n", "", exitDone}, probe(t.Context(), web.URL+"/delayq/readyz"))
		require.Contains(t, probe(t.Context(), web.URL+"/delayq/healthz").out, `"schema": "delayq.health/1"`)
		end()
		require.NoError(t, <-done)
		require.Equal(t, exitError, probe(t.Context(), web.URL+"/delayq/livez").code)
	})
}

func TestHealthOfOtherAnswers(t *testing.T) {
	hold := make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/silent":
			<-hold
		case "/moved":
			http.Redirect(w, r, "/ok", http.StatusFound)
		case "/control":
			_, _ = w.Write([]byte("\x1b[31mred\n"))
		case "/large":
			_, _ = w.Write(bytes.Repeat([]byte("x"), 2*mostHealth))
		}
	})
	web, safeWeb := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer web.Close()
	defer safeWeb.Close()
	defer close(hold)
	require.Equal(t, result{"", "", exitDone}, probe(t.Context(), web.URL+"/ok"))
	require.Equal(t, exitError, probe(t.Context(), web.URL+"/moved").code)
	require.NotContains(t, probe(t.Context(), web.URL+"/control").out, "\x1b")
	require.Len(t, probe(t.Context(), web.URL+"/large").out, mostHealth+1)
	require.Equal(t, result{"", "error: " + web.URL + "/silent: no answer within 50ms\n", exitError}, probe(t.Context(), "--within", "50ms", web.URL+"/silent"))
	r := probe(t.Context(), safeWeb.URL+"/ok")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.err, "certificate")
	require.Equal(t, exitError, probe(t.Context(), "http://127.0.0.1:1/readyz").code)

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	require.Equal(t, exitInterrupted, probe(ctx, "--within", "1m", web.URL+"/silent").code)
	for _, args := range [][]string{
		{}, {"a", "b"}, {"127.0.0.1:8080"}, {"ftp://h/x"}, {"http://"}, {"http://u:s3cret@h:port/"}, {"ftp://u:s3cret@h/"}, {"--within", "0s", web.URL}, {"-o", "json", web.URL},
	} {
		r := probe(t.Context(), args...)
		require.Equal(t, exitUsage, r.code, args)
		require.NotContains(t, r.err, "s3cret")
		require.True(t, strings.HasPrefix(r.err, "error: "), r.err)
	}
	require.NotContains(t, probe(t.Context(), "http://u:s3cret@127.0.0.1:1/").err, "s3cret")
}
