package webhook_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/handlers/webhook"
)

// names returns a resolver that asks answer for the addresses of a name, at each query.
func names(t *testing.T, answer func(name string) []string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe() // not a packet connection, so messages have a length in front
		go func() {
			defer server.Close()
			for {
				var length uint16
				if binary.Read(server, binary.BigEndian, &length) != nil {
					return
				}
				text := make([]byte, length)
				_, err := io.ReadFull(server, text)
				var m dnsmessage.Message
				if err != nil || m.Unpack(text) != nil || len(m.Questions) != 1 {
					return
				}
				m.Response, m.Authoritative, m.Additionals = true, true, nil
				head := dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET}
				for _, address := range answer(m.Questions[0].Name.String() + m.Questions[0].Type.String()) {
					addr := netip.MustParseAddr(address)
					switch {
					case addr.Is4() && m.Questions[0].Type == dnsmessage.TypeA:
						m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: addr.As4()}})
					case addr.Is6() && m.Questions[0].Type == dnsmessage.TypeAAAA:
						m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
					}
				}
				text, err = m.Pack()
				if err != nil {
					return
				}
				if _, err = server.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(text))), text...)); err != nil {
					return
				}
			}
		}()
		return client, nil
	}}
}

// A name that leads to an allowed address first and to a refused one later is refused later. The
// listener of the refused address shows that nothing is connected to it.
func TestNameThatChangesItsAddress(t *testing.T) {
	r := listen(t, http.StatusOK)
	r.Config.SetKeepAlivesEnabled(false)
	_, port, _ := net.SplitHostPort(r.Listener.Addr().String())
	l, err := net.Listen("tcp", "127.0.0.2:"+port)
	require.NoError(t, err)
	var reached atomic.Int64
	inside := &http.Server{ConnState: func(net.Conn, http.ConnState) { reached.Add(1) }}
	go func() { _ = inside.Serve(l) }()
	t.Cleanup(func() { _ = inside.Close() })

	var addresses atomic.Pointer[[]string]
	lead := func(to ...string) { addresses.Store(&to) }
	opts := []webhook.Option{webhook.PlainHTTP(), webhook.Resolver(names(t, func(string) []string { return *addresses.Load() }))}
	to := webhook.Receiver{URL: "http://rebind.example:" + port + "/", Secrets: []webhook.Secret{secret(t, vectorSecret)}}
	h, err := webhook.New(to, append(opts, webhook.Allow(netip.MustParsePrefix("127.0.0.1/32")))...)
	require.NoError(t, err)

	lead("127.0.0.1")
	require.NoError(t, h.Handle(t.Context(), job(t)))
	for _, address := range []string{"127.0.0.2", "169.254.169.254", "10.0.0.1", "100.64.0.1", "0.0.0.0", "::1", "::ffff:127.0.0.2", "64:ff9b::7f00:2", "fe80::1", "fd00::1"} {
		lead(address)
		err := h.Handle(t.Context(), job(t))
		require.ErrorIs(t, err, webhook.ErrAddress, address)
		require.True(t, permanent(err), address)
	}
	lead("127.0.0.1")
	require.NoError(t, h.Handle(t.Context(), job(t)))
	require.Equal(t, 2, r.count())

	lead("127.0.0.2", "127.0.0.1") // one of two is enough
	require.NoError(t, h.Handle(t.Context(), job(t)))
	require.Equal(t, 3, r.count())

	strict, err := webhook.New(to, opts...)
	require.NoError(t, err)
	lead("127.0.0.1")
	require.ErrorIs(t, strict.Handle(t.Context(), job(t)), webhook.ErrAddress)
	require.Zero(t, reached.Load())
	require.Equal(t, 3, r.count())
}

// Addresses in URLs are refused in all their spellings, and nothing is resolved to get around it.
func TestAddressesInURLs(t *testing.T) {
	r := listen(t, http.StatusOK)
	_, port, _ := net.SplitHostPort(r.Listener.Addr().String())
	none := webhook.Resolver(names(t, func(string) []string { return nil }))
	for _, host := range []string{
		"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[::]", "0.0.0.0",
		"169.254.169.254", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "127.0.0.1.", "[::1%25lo]", "10.0.0.1", "[fd00::1]", "[fe80::1%25lo]",
	} {
		for _, resolver := range []webhook.Option{none, webhook.Resolver(nil)} {
			h, err := webhook.New(webhook.Receiver{URL: "http://" + host + ":" + port, Secrets: []webhook.Secret{secret(t, vectorSecret)}},
				webhook.PlainHTTP(), resolver)
			require.NoError(t, err, host)
			require.Error(t, h.Handle(t.Context(), job(t)), host)
		}
	}
	require.Zero(t, r.count())
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	inside := listen(t, http.StatusOK)
	for _, status := range []int{301, 302, 303, 307, 308} {
		r := listen(t, status, "Location", inside.URL)
		err := hook(t, r.URL).Handle(t.Context(), job(t))
		_, retry := delayq.AsRetryIn(err)
		require.True(t, retry, err)
		require.NotContains(t, err.Error(), inside.URL)
		require.Equal(t, 1, r.count())
	}
	require.Zero(t, inside.count())
}

func TestProxiesAreNotUsed(t *testing.T) {
	proxy := listen(t, http.StatusOK)
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("http_proxy", proxy.URL)
	h, err := webhook.New(webhook.Receiver{URL: "http://10.0.0.1/", Secrets: []webhook.Secret{secret(t, vectorSecret)}}, webhook.PlainHTTP())
	require.NoError(t, err)
	require.ErrorIs(t, h.Handle(t.Context(), job(t)), webhook.ErrAddress)
	require.Zero(t, proxy.count())
}

// request reads a whole request and returns the connection's reader.
func request(conn net.Conn) *bufio.Reader {
	in := bufio.NewReader(conn)
	if req, err := http.ReadRequest(in); err == nil {
		_, _ = io.Copy(io.Discard, req.Body)
	}
	return in
}

// A receiver that is slow in any part of its answer costs no more than the timeout. Each of these
// ends only because the handler closes its connection.
func TestSlowReceivers(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\n"
	drip := func(conn net.Conn, text string) {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			if _, err := io.WriteString(conn, text); err != nil {
				return
			}
			<-tick.C
		}
	}
	const late = "no answer within 100ms"
	for name, c := range map[string]struct {
		serve func(net.Conn)
		text  string // of the error; empty: the status has decided
	}{
		"says nothing":     {func(c net.Conn) { in := request(c); _, _ = in.ReadByte() }, late},
		"drips the status": {func(c net.Conn) { request(c); drip(c, "H") }, late},
		"drips headers":    {func(c net.Conn) { request(c); _, _ = io.WriteString(c, head+"X: "); drip(c, "x") }, late},
		"stops after headers": {func(c net.Conn) {
			in := request(c)
			_, _ = io.WriteString(c, head+"Content-Length: 9\r\n\r\n")
			_, _ = in.ReadByte()
		}, ""},
		"drips the body": {func(c net.Conn) { request(c); _, _ = io.WriteString(c, head+"\r\n"); drip(c, "x") }, ""},
		"drips hints":    {func(c net.Conn) { request(c); drip(c, "HTTP/1.1 103 Early Hints\r\n\r\n") }, late},
	} {
		t.Run(name, func(t *testing.T) {
			err := hook(t, raw(t, c.serve), webhook.Timeout(100*time.Millisecond)).Handle(t.Context(), job(t))
			if c.text == "" {
				require.NoError(t, err)
				return
			}
			_, retry := delayq.AsRetryIn(err)
			require.True(t, retry)
			require.ErrorContains(t, err, c.text)
		})
	}
}

// A receiver that sends without an end makes the handler read little of it.
func TestEndlessAnswers(t *testing.T) {
	var sent atomic.Int64
	pour := func(conn net.Conn, text string) {
		for {
			n, err := io.WriteString(conn, text)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	}
	block := strings.Repeat("x", 1<<10)
	j := job(t)
	require.NoError(t, hook(t, raw(t, func(c net.Conn) {
		request(c)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		pour(c, block)
	})).Handle(t.Context(), j))
	require.Equal(t, "200 OK\n"+block, string(j.Output()), "its first KiB is attached to the run")
	err := hook(t, raw(t, func(c net.Conn) {
		request(c)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		pour(c, "X: "+block+"\r\n")
	})).Handle(t.Context(), job(t))
	require.ErrorContains(t, err, "server response headers exceeded")
	err = hook(t, raw(t, func(c net.Conn) { request(c); pour(c, block) })).Handle(t.Context(), job(t))
	require.Error(t, err)
	require.Less(t, len(err.Error()), 700)
	require.Less(t, sent.Load(), int64(64<<20), "what the buffers of the system take, and no more")
}

func TestReceiverThatIsAway(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	hangup := raw(t, func(c net.Conn) { request(c) })
	for _, url := range []string{"http://" + l.Addr().String(), hangup} {
		d, retry := delayq.AsRetryIn(hook(t, url).Handle(t.Context(), job(t)))
		require.True(t, retry)
		require.GreaterOrEqual(t, d, 5*time.Second)
	}
	h, err := webhook.New(webhook.Receiver{URL: "https://none.example/", Secrets: []webhook.Secret{secret(t, vectorSecret)}},
		webhook.Resolver(names(t, func(string) []string { return nil })))
	require.NoError(t, err)
	_, retry := delayq.AsRetryIn(h.Handle(t.Context(), job(t)))
	require.True(t, retry, "a name can come back")
}

// A receiver that never answers does not occupy the workers that others need.
func TestSilentHostDelaysNoOther(t *testing.T) {
	q := delayqtest.Start(t)
	q.Unfreeze()
	arrived, held := make(chan struct{}, 100), make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	silent := raw(t, func(c net.Conn) {
		request(c)
		arrived <- struct{}{}
		<-held
	})
	t.Cleanup(release)
	fine := listen(t, http.StatusOK)
	urls := map[string]string{"silent": silent, "fine": fine.URL}
	h, err := webhook.NewLookup(func(_ context.Context, j *delayq.Job) (webhook.Receiver, error) {
		return webhook.Receiver{URL: urls[j.Headers["to"]], Secrets: []webhook.Secret{secret(t, vectorSecret)}}, nil
	}, webhook.Allow(loopback), webhook.PlainHTTP(), webhook.PerHost(2), webhook.Timeout(10*time.Minute))
	require.NoError(t, err)
	send := func(to string, n int) {
		for range n {
			_, err := q.Client.Enqueue(t.Context(), "hooks", "", []byte(`{}`), delayq.Header("to", to), webhook.Key(urls[to]))
			require.NoError(t, err)
		}
	}
	q.Serve(func(s *delayq.Server) { s.Handle("hooks", h, delayq.Concurrency(4)) })
	send("silent", 20)
	<-arrived
	<-arrived
	send("fine", 20)
	require.Eventually(t, func() bool { return fine.count() == 20 }, time.Minute, time.Millisecond)
	require.Empty(t, arrived, "two requests at a time")

	j := job(t, delayq.Header("to", "silent"))
	result := make(chan error, 1)
	go func() { result <- h.Handle(t.Context(), j) }()
	<-arrived // a job without a key cannot be held
	release()
	_, retry := delayq.AsRetryIn(<-result)
	require.True(t, retry)
}

func TestCancelledRequest(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	url := raw(t, func(c net.Conn) {
		in := request(c)
		cancel(delayq.ErrShutdown)
		_, _ = in.ReadByte() // until the handler hangs up
	})
	require.ErrorIs(t, hook(t, url).Handle(ctx, job(t)), delayq.ErrShutdown)
}

func TestCertificates(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) }))
	t.Cleanup(s.Close)
	_, retry := delayq.AsRetryIn(hook(t, s.URL).Handle(t.Context(), job(t)))
	require.True(t, retry, "an unknown authority")
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	require.NoError(t, hook(t, s.URL, webhook.TLS(&tls.Config{RootCAs: roots})).Handle(t.Context(), job(t)))
}

func BenchmarkHandle(b *testing.B) {
	r := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {}))
	b.Cleanup(r.Close)
	b.Run("handler", func(b *testing.B) {
		h := hook(b, r.URL)
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			j := delayqtest.NewJob(b, delayq.NewJob{Topic: "hooks", Payload: []byte(`{"type":"order.paid"}`)})
			for pb.Next() {
				if err := h.Handle(b.Context(), j); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
	b.Run("plain", func(b *testing.B) {
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: 15 * time.Second}
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				resp, err := client.Post(r.URL, "application/json", strings.NewReader(`{"type":"order.paid"}`))
				if err != nil {
					b.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		})
	})
}
