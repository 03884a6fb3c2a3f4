package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

func TestMain(m *testing.M) { queuetest.Main(m, nil) }

// A world is a gateway that runs, and the tokens of its clients.
type world struct {
	testing.TB
	*Gateway
	tokens map[string]string // by name
	end    context.CancelFunc
	done   chan struct{}
}

// users are the names, rights and topics of the tokens in tests.
var users = [][3]string{
	{"all", "produce,consume,operate", "*"}, {"shop", "produce", "order:*, mail"}, {"cook", "consume", "order:*"}, {"boss", "operate", "order:*"},
}

// newWorld runs a gateway until the end of the test.
func newWorld(t testing.TB, rdb redis.UniversalClient, prefix string, change func(*Config)) *world {
	t.Helper()
	w := &world{TB: t, tokens: make(map[string]string), done: make(chan struct{})}
	file := filepath.Join(t.TempDir(), "tokens")
	lines := "# tokens\n\n"
	for _, u := range users {
		token, line, err := NewToken(u[0], u[1], u[2])
		require.NoError(t, err)
		w.tokens[u[0]] = token
		lines += line + "\n"
	}
	require.NoError(t, os.WriteFile(file, []byte(lines), 0o600))
	tokens, err := NewTokens(file)
	require.NoError(t, err)
	c := Config{
		Redis: rdb, Prefix: prefix, Client: delayq.NewClient(rdb, delayq.Prefix(prefix)), Tokens: tokens, Log: slog.New(slog.DiscardHandler),
		MaxBody: 1 << 20, MaxLeases: 300, MaxWaiters: 100, MaxRequests: 100, MaxTopics: 20, TokenShare: 100, Drain: 5 * time.Second,
	}
	if change != nil {
		change(&c)
	}
	w.Gateway = New(c)
	ctx, end := context.WithCancel(context.WithoutCancel(t.Context()))
	w.end = end
	go func() {
		defer close(w.done)
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(w.stop)
	return w
}

// stop ends the gateway.
func (w *world) stop() {
	w.end()
	<-w.done
}

// A reply is what a request was answered with.
type reply struct {
	status int
	header http.Header
	body   map[string]any
	raw    string
}

// ask sends a request as a user. Each answer must be one that the document has.
func (w *world) ask(user, method, path string, body any, headers ...string) reply {
	w.Helper()
	return w.askIn(w.Context(), user, method, path, body, headers...)
}

func (w *world) askIn(ctx context.Context, user, method, path string, body any, headers ...string) reply {
	w.Helper()
	var in []byte
	switch b := body.(type) {
	case nil:
	case string:
		in = []byte(b)
	default:
		var err error
		in, err = json.Marshal(b)
		require.NoError(w, err)
	}
	r := httptest.NewRequestWithContext(ctx, method, path, bytes.NewReader(in))
	if user != "" {
		r.Header.Set("Authorization", "Bearer "+w.tokens[user])
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	out := httptest.NewRecorder()
	w.ServeHTTP(out, r)
	answer := reply{out.Code, out.Header(), nil, out.Body.String()}
	_ = json.Unmarshal(out.Body.Bytes(), &answer.body) // or it is none
	w.declared(r, answer)
	return answer
}

// declared holds an answer to its route.
func (w *world) declared(r *http.Request, a reply) {
	w.Helper()
	c := &call{r: r}
	found, _, _ := c.route()
	if found == nil {
		require.Contains(w, []int{400, 401, 404, 405}, a.status)
		return
	}
	require.True(w, slices.Contains(found.statuses, a.status) || !found.public && slices.Contains(everywhere, a.status), "%s %s: %d", found.method, found.path, a.status)
	if a.status >= 400 {
		require.Equal(w, "application/problem+json", a.header.Get("Content-Type"))
		require.True(w, slices.ContainsFunc(kinds, func(k kind) bool { return problemPrefix+k.name == a.body["type"] && k.status == a.status }), a.raw)
	}
	limited := a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable
	require.Equal(w, limited, a.header.Get("Retry-After") != "", a.raw)
}

// is requires a status and, of a problem, its type.
func (w *world) is(a reply, status int, kind string) reply {
	w.Helper()
	require.Equal(w, status, a.status, a.raw)
	if kind != "" {
		require.Equal(w, problemPrefix+kind, a.body["type"], a.raw)
	}
	return a
}

// fields returns the names of the fields that a problem is about.
func (a reply) fields() (list []string) {
	errors, _ := a.body["errors"].([]any)
	for _, e := range errors {
		list = append(list, e.(map[string]any)["field"].(string))
	}
	return list
}

// took takes jobs as a consumer, with the fields of a request.
func (w *world) took(topic, request string) (jobs []map[string]any) {
	w.Helper()
	a := w.is(w.ask("all", "POST", "/v1/topics/"+topic+"/take", request), 200, "")
	for _, j := range a.body["jobs"].([]any) {
		jobs = append(jobs, j.(map[string]any))
	}
	return jobs
}

// settles settles a job, with more fields of the request.
func (w *world) settles(topic string, job map[string]any, outcome, more string) reply {
	w.Helper()
	return w.ask("all", "POST", "/v1/topics/"+topic+"/settle", fmt.Sprintf(`[{"lease":%q,"outcome":%q%s}]`, job["lease"], outcome, more))
}

// result returns the first of the results of an answer.
func (a reply) result() map[string]any { return a.body["results"].([]any)[0].(map[string]any) }

// reason returns why the first item of an answer was not done.
func (a reply) reason() string {
	p, _ := a.result()["problem"].(map[string]any)
	why, _ := p["reason"].(string)
	return strings.TrimSpace(why)
}

// request is one of a user, to be served by hand.
func (w *world) request(ctx context.Context, user, path, body string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+w.tokens[user])
	r.Header.Set("Content-Type", "application/json")
	return r
}

// failing is the answer to a client that has gone.
type failing struct{}

func (failing) Header() http.Header       { return http.Header{} }
func (failing) Write([]byte) (int, error) { return 0, net.ErrClosed }
func (failing) WriteHeader(int)           {}

// post sends a request of a user to an address, over a connection of its own.
func (w *world) post(t *testing.T, addr, user, path, body string) (status int, answer string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+path, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+w.tokens[user])
	r.Header.Set("Content-Type", "application/json")
	a, err := client.Do(r)
	require.NoError(t, err)
	text, err := io.ReadAll(a.Body)
	require.NoError(t, err)
	require.NoError(t, a.Body.Close())
	return a.StatusCode, string(text)
}
