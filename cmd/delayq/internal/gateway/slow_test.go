package gateway

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// slowOnes are how many slow clients the tests have: more than requests are worked on at a time.
const slowOnes = 300

// A site is a gateway with a server of HTTP, on a real Redis. Nothing in it ends by the clock.
type site struct {
	*world
	addr  string
	conns *boundedListener
}

// smallBuffers is a listener whose connections keep little of what is not read.
type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(4096)
	}
	return c, err
}

// newSite serves a gateway that works on 10 requests at a time, 5 of them of one token.
func newSite(t *testing.T, room int) *site {
	w := newWorld(t, redistest.Shared(t), redistest.Prefix(t), func(c *Config) { c.MaxRequests, c.MaxWaiters, c.TokenShare = 10, 10, 50 })
	w.slack = time.Hour
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server, listener := w.HTTPServer(smallBuffers{l}, slog.New(slog.DiscardHandler))
	server.ReadHeaderTimeout, server.ReadTimeout, server.WriteTimeout = 0, 0, 0
	s := &site{world: w, addr: l.Addr().String(), conns: listener.(*boundedListener)}
	if room > 0 {
		s.conns.room = make(chan struct{}, room)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-ended, http.ErrServerClosed)
		queuetest.Until(t, func() bool { return len(s.conns.room) == 0 && s.uses("all").over() && s.uses("shop").over() })
	})
	return s
}

// over reports whether no request is left. A lease can be.
func (s share) over() bool { return s.requests == 0 && s.waits == 0 && s.bytes == 0 }

// uses returns what the clients of a token use.
func (s *site) uses(token string) share {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shares[token] == nil {
		return share{}
	}
	return *s.shares[token]
}

// dial opens a connection that sends a text, and nothing more.
func (s *site) dial(t *testing.T, text string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", s.addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() }) // the gateway may have closed it
	tcp := c.(*net.TCPConn)
	require.NoError(t, tcp.SetReadBuffer(4096))
	_, err = io.WriteString(tcp, text)
	require.NoError(t, err)
	return tcp
}

// head is that of a request of a user.
func (s *site) head(user, method, path, more string) string {
	return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n%s\r\n", method, path, s.tokens[user], more)
}

// send is post to the site.
func (s *site) send(t *testing.T, user, path, body string) (status int, answer string) {
	t.Helper()
	return s.post(t, s.addr, user, path, body)
}

// Clients whose bodies arrive byte by byte keep nobody waiting, also none of the same token.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	s := newSite(t, 0)
	for range slowOnes {
		s.dial(t, s.head("shop", "POST", "/v1/topics/mail/jobs", "Content-Type: application/json\r\nContent-Length: 1000\r\n")+"{")
	}
	queuetest.Until(t, func() bool { return s.uses("shop").bytes == slowOnes*leastRead }, "they are being read")
	for _, user := range []string{"shop", "all"} {
		status, text := s.send(t, user, "/v1/topics/mail/jobs", `{"id":"`+user+`"}`)
		require.Equal(t, http.StatusCreated, status, text)
	}
}

// Clients that do not read their answers use up the share of their token, and no more.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	s := newSite(t, 0)
	status, text := s.send(t, "shop", "/v1/topics/mail/jobs", `{"id":"large","payload":"`+strings.Repeat("x", 400<<10)+`"}`)
	require.Equal(t, http.StatusCreated, status, text)
	for range slowOnes {
		s.dial(t, s.head("all", "GET", "/v1/topics/mail/jobs/large", ""))
	}
	queuetest.Until(t, func() bool { u := s.uses("all"); return u.requests == 5 && u.bytes > 4<<20 }, "the share is used up")
	status, text = s.send(t, "all", "/v1/topics/mail/jobs", `{}`)
	require.Equal(t, http.StatusTooManyRequests, status, text)
	require.Contains(t, text, `clients of the token \"all\" have 5 requests under way, of 10 for all tokens together`)
	status, text = s.send(t, "shop", "/v1/topics/mail/jobs", `{}`)
	require.Equal(t, http.StatusCreated, status, text)
}

// Strangers that hold connections open, and send heads byte by byte, lose these to others. A
// request that is waited for keeps its connection.
func TestSlowHeads(t *testing.T) {
	t.Parallel()
	s := newSite(t, 30)
	type reply struct {
		status int
		text   string
	}
	taken := make(chan reply, 1)
	go func() {
		status, text := s.send(t, "all", "/v1/topics/mail/take", `{"wait":60}`)
		taken <- reply{status, text}
	}()
	queuetest.Until(t, func() bool { return s.uses("all").leases == 1 }, "the consumer waits")
	var first *net.TCPConn
	for i := range slowOnes {
		c, err := net.Dial("tcp", s.addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		if i == 0 {
			first = c.(*net.TCPConn)
		}
		_, _ = io.WriteString(c, "POST /v1/topics/mail/jobs HTTP/1.1\r\nHost:") // it may have lost its place already
	}
	_, _ = io.ReadAll(first) // it returns: the connection has lost its place
	status, text := s.send(t, "shop", "/v1/topics/mail/jobs", `{"id":"1"}`)
	require.Equal(t, http.StatusCreated, status, text)
	got := <-taken
	require.Equal(t, http.StatusOK, got.status)
	require.Contains(t, got.text, `"id":"1"`)
}

// The clients of one token cannot use up what the gateway has for all.
func TestTokenShare(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := newWorld(b.T, b.RDB, queuetest.Prefix, func(c *Config) {
			c.MaxLeases, c.MaxWaiters, c.MaxRequests, c.MaxTopics, c.TokenShare = 10, 4, 4, 4, 50
		})
		over := func(a reply, want string) {
			b.Helper()
			w.is(a, 429, "token-share")
			require.Equal(b, "1", a.header.Get("Retry-After"))
			require.Equal(b, `clients of the token "all" have `+want+" for all tokens together", a.body["detail"])
		}
		for i := range 20 {
			b.Enqueue("order:a", fmt.Sprint(i))
		}
		take := func(user, topic, body string) reply { return w.ask(user, "POST", "/v1/topics/"+topic+"/take", body) }
		jobs := w.took("order:a", `{"max":100,"lease":600}`)
		require.Len(b, jobs, 5)
		over(take("all", "order:a", `{}`), "5 jobs, or wait for them, of 10")
		require.Len(b, w.is(take("cook", "order:a", `{"max":100,"lease":1}`), 200, "").body["jobs"], 5)
		w.is(w.settles("order:a", jobs[0], "ack", ""), 200, "")
		require.Len(b, w.took("order:a", `{"max":2,"lease":1}`), 1)

		b.Pass(2 * time.Second) // the short leases end
		done := make(chan reply, 2)
		go func() { done <- take("all", "mail", `{"wait":30}`) }()
		b.Pass(time.Second)
		over(take("all", "mail", `{}`), "5 jobs, or wait for them, of 10")
		for _, job := range jobs[1:] {
			w.is(w.settles("order:a", job, "ack", ""), 200, "")
		}
		go func() { done <- take("all", "mail", `{"wait":30}`) }()
		b.Pass(time.Second)
		over(take("all", "mail", `{}`), "2 requests that wait, of 4")
		over(w.ask("all", "GET", "/v1/topics/mail/jobs/1/result", nil), "2 requests that wait, of 4")
		w.is(take("cook", "order:a", `{"lease":1}`), 200, "")
		<-done
		<-done

		over(take("all", "third", `{}`), "2 topics from which they were the first to take, of 4")
		w.is(take("cook", "order:b", `{"wait":0}`), 200, "")
		w.is(take("all", "order:b", `{"wait":0}`), 200, "")
		w.mu.Lock()
		w.shareOf("all").requests = 2
		w.mu.Unlock()
		over(w.ask("all", "GET", jobsPath+"/1", nil), "2 requests under way, of 4")
		w.is(w.ask("boss", "GET", jobsPath+"/1", nil), 404, "")
		w.mu.Lock()
		w.shareOf("all").requests = 0
		w.freed("all")
		w.mu.Unlock()
		b.Pass(2 * time.Second)
		require.Empty(b, w.shares)
	})
}

// A token that is the only one has all.
func TestLoneToken(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		token, line, err := NewToken("lone", "consume", "*")
		require.NoError(b, err)
		w := newWorld(b.T, b.RDB, queuetest.Prefix, func(c *Config) {
			c.MaxLeases, c.TokenShare = 10, 50
			require.NoError(b, os.WriteFile(c.Tokens.path, []byte(line+"\n"), 0o600))
			require.NoError(b, c.Tokens.Load())
		})
		w.tokens["lone"] = token
		for i := range 20 {
			b.Enqueue("order:a", fmt.Sprint(i))
		}
		got := w.is(w.ask("lone", "POST", "/v1/topics/order:a/take", `{"max":100,"lease":1}`), 200, "")
		require.Len(b, got.body["jobs"], 10)
	})
}

// What nobody but consumers of a gateway takes has no workers: an explanation says who takes it.
func TestExplanationOfTopicOfGateway(t *testing.T) {
	inWorld(t, func(b *queuetest.Bubble, w *world) {
		w.took("mail", `{"wait":1}`)
		b.Pass(6 * time.Second) // the next heartbeat
		b.Enqueue("mail", "1")
		e, err := b.Inspector.Explain(b.Context(), "mail", "1")
		require.NoError(b, err)
		require.Equal(b, "Ready: it is next, and the next consumer that asks a gateway for a job gets it.", e.Verdict)
		b.Pass(5 * time.Second)
		e, err = b.Inspector.Explain(b.Context(), "mail", "1")
		require.NoError(b, err)
		require.Equal(b, delayq.ReasonNotTaken, e.Reasons[0].Code)
		require.Contains(b, e.Verdict, "no consumer has taken it")
	})
}
