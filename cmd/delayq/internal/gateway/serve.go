package gateway

import (
	"container/list"
	"context"
	"crypto/tls"
	_ "embed"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// openAPI is the document that describes the API.
//
//go:embed openapi.json
var openAPI string

// document serves openapi.json.
func (g *Gateway) document(c *call) error {
	c.w.Header().Set("Content-Type", "application/json")
	_, err := io.WriteString(c.w, openAPI)
	return err
}

// spareConns are the connections beside those of requests that the gateway works on: idle ones,
// those whose request is on its way, and those whose answer is being read.
const spareConns = 1024

type connKey struct{}

// HTTPServer returns the server of the API, and a listener with bounds. A request must arrive, and
// an answer be read, within fixed times. A connection that is one too many takes the place of the
// one that has been without a request in work for the longest time, so slow clients and strangers
// keep nobody away.
func (g *Gateway) HTTPServer(l net.Listener, log *slog.Logger) (*http.Server, net.Listener) {
	s := &http.Server{
		Handler: g, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: bodyTimeout, WriteTimeout: writeTimeout, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if over, ok := c.(*tls.Conn); ok {
				c = over.NetConn()
			}
			if bounded, ok := c.(*boundedConn); ok {
				ctx = context.WithValue(ctx, connKey{}, bounded)
			}
			return ctx
		},
	}
	return s, &boundedListener{Listener: l, room: make(chan struct{}, g.MaxRequests+g.MaxWaiters+spareConns), closed: make(chan struct{})}
}

// A boundedListener accepts so many connections at a time.
type boundedListener struct {
	net.Listener
	room   chan struct{}
	closed chan struct{}
	once   sync.Once

	mu   sync.Mutex
	idle list.List // of *boundedConn: those without a request in work, the longest first
}

// Accept waits for another connection. If there are as many as there can be, it closes one.
func (l *boundedListener) Accept() (net.Conn, error) {
	select {
	case l.room <- struct{}{}:
	default:
		l.displace()
		select {
		case l.room <- struct{}{}:
		case <-l.closed:
			return nil, net.ErrClosed
		}
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.room
		return nil, err
	}
	b := &boundedConn{Conn: c, of: l}
	b.leave = sync.OnceFunc(func() {
		l.mu.Lock()
		b.gone = true
		b.settle()
		l.mu.Unlock()
		<-l.room
	})
	l.mu.Lock()
	b.settle()
	l.mu.Unlock()
	return b, nil
}

// displace closes the connection that has been without a request in work for the longest time.
// There is one, because there are fewer such requests than connections.
func (l *boundedListener) displace() {
	l.mu.Lock()
	first := l.idle.Front()
	l.mu.Unlock()
	if first != nil {
		_ = first.Value.(*boundedConn).Close() // its server finds out
	}
}

// Close ends the wait for room, too.
func (l *boundedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// A boundedConn is one of the connections of a boundedListener, whose lock guards its fields.
type boundedConn struct {
	net.Conn
	of    *boundedListener
	leave func()
	work  int // requests that the gateway works on; HTTP/2 can have several
	gone  bool
	place *list.Element // in idle; nil: it is not there
}

// protect notes that the gateway works on a request of the connection. A nil one is that of a test.
func (c *boundedConn) protect() { c.add(1) }

// expose notes that it does no more.
func (c *boundedConn) expose() { c.add(-1) }

func (c *boundedConn) add(work int) {
	if c == nil {
		return
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.work += work
	c.settle()
}

// settle gives the connection its place among the idle ones, or takes it out.
func (c *boundedConn) settle() {
	switch idle := c.work == 0 && !c.gone; {
	case idle && c.place == nil:
		c.place = c.of.idle.PushBack(c)
	case !idle && c.place != nil:
		c.of.idle.Remove(c.place)
		c.place = nil
	}
}

// Close makes room for another connection.
func (c *boundedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
