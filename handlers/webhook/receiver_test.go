package webhook_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/handlers/webhook"
)

// The secret and the signature of the test suites of Standard Webhooks and of Svix.
const (
	vectorSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	vectorSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	otherSecret     = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
)

var loopback = netip.MustParsePrefix("127.0.0.0/8")

var zeroPrefix netip.Prefix

func secret(t testing.TB, text string) webhook.Secret {
	t.Helper()
	s, err := webhook.ParseSecret(text)
	require.NoError(t, err)
	return s
}

// A receiver records what is posted to it.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string
	heads  []http.Header
}

// listen starts a receiver that answers with a status and headers (name, value, …).
func listen(t testing.TB, status int, headers ...string) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.bodies, r.heads = append(r.bodies, string(body)), append(r.heads, req.Header)
		r.mu.Unlock()
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.bodies)
}

// raw starts a receiver of bare connections. They are closed when serve returns.
func raw(t testing.TB, serve func(conn net.Conn)) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var all sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	return "http://" + l.Addr().String()
}

// hook returns a handler that may post to this machine.
func hook(t testing.TB, url string, opts ...webhook.Option) *webhook.Handler {
	t.Helper()
	opts = append([]webhook.Option{webhook.Allow(loopback), webhook.PlainHTTP()}, opts...)
	h, err := webhook.New(webhook.Receiver{URL: url, Secrets: []webhook.Secret{secret(t, vectorSecret)}}, opts...)
	require.NoError(t, err)
	return h
}

func job(t testing.TB, opts ...delayq.JobOption) *delayq.Job {
	t.Helper()
	return delayqtest.NewJob(t, delayq.NewJob{Topic: "hooks", ID: "order-42", Payload: []byte(`{"type":"order.paid"}`), Options: opts})
}

// unix reads a time in Unix seconds.
func unix(t testing.TB, text string) time.Time {
	t.Helper()
	seconds, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return time.Unix(seconds, 0)
}
