package gateway

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// A share is what the clients of one token use of the bounds of a gateway. Gateway.mu guards it.
type share struct {
	requests int   // that the gateway works on
	waits    int   // takes and waits for results among them
	leases   int   // jobs that its consumers have, and those that they wait for
	bytes    int64 // of bodies and answers that are on their way
}

// shareOf returns the share of a token. Gateway.mu must be held.
func (g *Gateway) shareOf(who string) *share {
	s := g.shares[who]
	if s == nil {
		s = new(share)
		g.shares[who] = s
	}
	return s
}

// freed forgets a share that is not used any more, because tokens come and go. Gateway.mu must be
// held.
func (g *Gateway) freed(who string) {
	if s := g.shares[who]; s != nil && *s == (share{}) {
		delete(g.shares, who)
	}
}

// percent is how much of each bound one token can use: all of it if there is no other token.
func (g *Gateway) percent() int {
	if g.Tokens.alone() {
		return 100
	}
	return g.TokenShare
}

// part is how much of a bound one token can use.
func (g *Gateway) part(bound int) int { return max(1, bound*g.percent()/100) }

// overShare is the problem of a token that has used up its share of a bound.
func (g *Gateway) overShare(who, what string, bound int) *problem {
	return newProblem(tokenShare, "clients of the token %q have %d %s, of %d for all tokens together", who, g.part(bound), what, bound)
}

// admit lets a request be worked on, unless too many are. What it returns ends that; it can be
// called again.
func (g *Gateway) admit(c *call, waits bool) (leave func(), err error) {
	who := c.who.name
	room, bound, what := g.busy, g.MaxRequests, "requests under way"
	if waits {
		room, bound, what = g.waits, g.MaxWaiters, "requests that wait"
	}
	count := func(by int) int {
		s := g.shareOf(who)
		if waits {
			s.waits += by
			return s.waits
		}
		s.requests += by
		return s.requests
	}
	g.mu.Lock()
	if g.percent() < 100 && count(0) >= g.part(bound) { // first, so that it takes no room from others
		g.freed(who)
		g.mu.Unlock()
		return nil, g.overShare(who, what, bound)
	}
	select {
	case room <- struct{}{}:
		count(1)
		g.mu.Unlock()
	default:
		g.freed(who)
		g.mu.Unlock()
		return nil, newProblem(tooMany, "there are %d %s", cap(room), what)
	}
	conn, _ := c.r.Context().Value(connKey{}).(*boundedConn)
	conn.protect()
	return sync.OnceFunc(func() {
		conn.expose()
		g.mu.Lock()
		count(-1)
		g.freed(who)
		g.mu.Unlock()
		<-room
	}), nil
}

// mostBytes is how many bytes of bodies and answers can be on their way.
func (g *Gateway) mostBytes() int64 { return int64(g.MaxRequests) * g.MaxBody }

// hold counts bytes of a body or an answer that is on its way. It reports false, and counts none,
// if these are too many.
func (g *Gateway) hold(c *call, n int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	s, most := g.shareOf(c.who.name), g.mostBytes()
	// What one request needs is allowed to a token that has no other.
	if g.bytes+n > most || s.bytes+n > max(most*int64(g.percent())/100, 2*g.MaxBody) {
		g.freed(c.who.name)
		return false
	}
	g.bytes += n
	s.bytes += n
	c.bytes += n
	return true
}

// drop ends the count of all bytes of a request.
func (g *Gateway) drop(c *call) {
	if c.bytes == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bytes -= c.bytes
	g.shareOf(c.who.name).bytes -= c.bytes
	c.bytes = 0
	g.freed(c.who.name)
}

// leastRead is the room with which the read of a body begins. It doubles as the body arrives, so
// that a client has as many bytes of memory as it has sent, and no more.
const leastRead = 4 << 10

// receive reads a body. Nothing waits for it but its own connection.
func (g *Gateway) receive(c *call) ([]byte, error) {
	_ = c.control.SetReadDeadline(time.Now().Add(bodyTimeout + g.slack)) // or that of the server holds
	from := http.MaxBytesReader(c.w, c.r.Body, g.MaxBody)
	var raw []byte
	for {
		if len(raw) == cap(raw) {
			size := min(max(leastRead, 2*int64(cap(raw))), g.MaxBody+1)
			if !g.hold(c, size-int64(cap(raw))) {
				return nil, newProblem(tooMany, "the bodies and answers that are on their way have %d bytes, or those of this token %d %% of that",
					g.mostBytes(), g.percent())
			}
			raw = append(make([]byte, 0, size), raw...)
		}
		n, err := from.Read(raw[len(raw):cap(raw)])
		raw = raw[:len(raw)+n]
		if err == io.EOF {
			return raw, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
