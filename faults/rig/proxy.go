package rig

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A Proxy is a network between clients and one Redis server that breaks when told to. It
// understands enough of the Redis protocol to know which reply belongs to which request. Safe for
// concurrent use.
type Proxy struct {
	ln    net.Listener
	wg    sync.WaitGroup
	close sync.Once

	requests, replies lane

	mu      sync.Mutex
	target  string
	cut     bool
	delay   time.Duration
	mute    bool
	dropped int
	frozen  chan struct{} // closed when the proxy thaws; nil: not frozen
	links   map[*link]bool
	traps   []*Trap
	done    bool
}

// NewProxy starts a proxy in front of a server. The caller closes it.
func NewProxy(target string) (*Proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy of %s: %w", target, err)
	}
	p := &Proxy{ln: ln, target: target, links: make(map[*link]bool)}
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is where clients connect to.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Retarget sends new connections to another server, like a change of DNS. Those that are open stay
// where they are.
func (p *Proxy) Retarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Cut resets all connections and every new one until Heal.
func (p *Proxy) Cut() {
	p.mu.Lock()
	p.cut = true
	p.mu.Unlock()
	p.Reset()
}

// Reset resets all connections once and tells how many there were. New ones are served.
func (p *Proxy) Reset() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.reset()
	}
	return len(p.links)
}

// Freeze holds back every byte in both directions until Heal: connections are accepted and stay
// open, and nothing answers.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen == nil {
		p.frozen = make(chan struct{})
	}
}

// Strand makes all present connections half-open for ever: they stay open and nothing goes through
// them any more, as when a firewall has forgotten them. New connections are served. It tells how
// many there were.
func (p *Proxy) Strand() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.stranded.Do(func() { close(l.strand) })
	}
	return len(p.links)
}

// Slow delays every request by d until Heal.
func (p *Proxy) Slow(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Narrow gives the link a bandwidth, in bytes a second for each direction, which all connections
// share, and delays every request by d, until Heal.
func (p *Proxy) Narrow(bytes int64, d time.Duration) {
	p.requests.narrow(bytes)
	p.replies.narrow(bytes)
	p.Slow(d)
}

// Mute drops all messages that Redis publishes, until Heal. Subscriptions stay, and Redis counts
// the subscribers as listeners.
func (p *Proxy) Mute() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute = true
}

// muted reports whether a message is dropped, and counts it then.
func (p *Proxy) muted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mute {
		p.dropped++
	}
	return p.mute
}

// Dropped returns how many messages Mute has dropped.
func (p *Proxy) Dropped() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

// Heal ends Cut, Freeze, Slow, Narrow and Mute. Traps stay.
func (p *Proxy) Heal() {
	p.Narrow(0, 0)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut, p.delay, p.mute = false, 0, false
	p.thawLocked()
}

// thaw ends Freeze.
func (p *Proxy) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thawLocked()
}

func (p *Proxy) thawLocked() {
	if p.frozen != nil {
		close(p.frozen)
		p.frozen = nil
	}
}

// Close ends the proxy and its connections.
func (p *Proxy) Close() error {
	var err error
	p.close.Do(func() {
		p.mu.Lock()
		p.done = true
		p.mu.Unlock()
		err = p.ln.Close()
		p.Heal()
		p.Reset()
		p.wg.Wait()
	})
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

// serve is one connection.
func (p *Proxy) serve(client net.Conn) {
	l := &link{proxy: p, client: client, strand: make(chan struct{}), over: make(chan struct{})}
	p.mu.Lock()
	target, refuse, frozen := p.target, p.cut || p.done, p.frozen
	if !refuse {
		p.links[l] = true
	}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, l)
	}()
	if refuse {
		l.reset()
		return
	}
	if frozen != nil {
		select {
		case <-frozen:
		case <-l.over:
			return
		}
	}
	server, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		l.reset()
		return
	}
	l.setServer(server)
	var both sync.WaitGroup
	both.Go(l.up)
	both.Go(l.down)
	both.Wait()
	l.reset()
}

// A link is one connection through the proxy.
type link struct {
	proxy    *Proxy
	client   net.Conn
	strand   chan struct{} // closed when nothing goes through any more
	stranded sync.Once
	over     chan struct{}
	ended    sync.Once
	halts    atomic.Bool // it waits for the reply that HaltAfter keeps back

	mu      sync.Mutex
	server  net.Conn
	pending []*Trap // one for each request that awaits its reply, nil for most
	raw     bool    // subscribed: replies no longer belong to requests
}

func (l *link) setServer(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server = c
	select {
	case <-l.over:
		_ = c.Close()
	default:
	}
}

// reset ends the link with a RST to both sides.
func (l *link) reset() {
	l.ended.Do(func() {
		close(l.over)
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, c := range []net.Conn{l.client, l.server} {
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
				_ = tcp.Close()
			}
		}
	})
}

// errOver ends the goroutines of a link.
var errOver = errors.New("link is over")

// pass waits until a byte may go through.
func (l *link) pass(request bool) error {
	p := l.proxy
	for {
		p.mu.Lock()
		frozen, delay := p.frozen, p.delay
		p.mu.Unlock()
		select {
		case <-l.over:
			return errOver
		case <-l.strand:
			<-l.over
			return errOver
		default:
		}
		if frozen != nil {
			select {
			case <-frozen:
			case <-l.over:
				return errOver
			}
			continue
		}
		if request && delay > 0 {
			select {
			case <-time.After(delay):
			case <-l.over:
				return errOver
			}
		}
		return nil
	}
}

// up carries requests.
func (l *link) up() {
	defer l.reset()
	in, out := bufio.NewReaderSize(l.client, 1<<16), bufio.NewWriterSize(&paced{l.server, &l.proxy.requests, l.over}, 1<<16)
	for {
		words, raw, err := readRequest(in)
		if err != nil || l.pass(true) != nil {
			return
		}
		trap := l.proxy.caught(words)
		if trap != nil && trap.before {
			l.halt(trap)
			return
		}
		if trap != nil && trap.reply != "" {
			if out.Flush() != nil || l.answer(trap) != nil {
				return
			}
			continue
		}
		l.mu.Lock()
		if len(words) > 0 && strings.HasSuffix(strings.ToLower(string(words[0])), "subscribe") {
			l.raw = true
		}
		l.pending = append(l.pending, trap)
		l.mu.Unlock()
		halts := trap != nil && trap.after
		if halts { // nothing else is to happen before its reply
			l.halts.Store(true)
			l.proxy.Freeze()
		}
		if _, err := out.Write(raw); err != nil {
			return
		}
		if (halts || in.Buffered() == 0) && out.Flush() != nil {
			return
		}
	}
}

// answer gives the client a reply once all replies before it are there.
func (l *link) answer(t *Trap) error {
	for {
		l.mu.Lock()
		clear := len(l.pending) == 0
		l.mu.Unlock()
		if clear {
			break
		}
		select {
		case <-time.After(time.Millisecond):
		case <-l.over:
			return errOver
		}
	}
	l.proxy.mu.Lock()
	t.struckLocked()
	l.proxy.mu.Unlock()
	_, err := l.client.Write([]byte(t.reply))
	return err
}

// halt ends a link for a trap, and freezes the others if the request has not come through.
func (l *link) halt(t *Trap) {
	if t.before {
		l.proxy.Freeze()
	}
	l.reset()
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	t.struckLocked()
}

// down carries replies.
func (l *link) down() {
	defer func() {
		select {
		case <-l.strand: // the client does not hear that the server is gone
			<-l.over
		default:
		}
		l.reset()
	}()
	in, out := bufio.NewReaderSize(l.server, 1<<16), bufio.NewWriterSize(&paced{l.client, &l.proxy.replies, l.over}, 1<<16)
	for {
		kind, raw, err := readReply(in, nil)
		if err != nil || !l.halts.Load() && l.pass(false) != nil {
			return
		}
		l.mu.Lock()
		var trap *Trap
		if kind != '>' && !l.raw && len(l.pending) > 0 {
			trap = l.pending[0]
			l.pending = l.pending[1:]
		}
		l.mu.Unlock()
		if trap != nil {
			if !bytes.HasPrefix(raw, []byte("-NOSCRIPT")) {
				l.halt(trap)
				return
			}
			trap.missed()
			if trap.after {
				l.halts.Store(false)
				l.proxy.thaw()
			}
		}
		if isMessage(raw) && l.proxy.muted() {
			raw = nil
		}
		if _, err := out.Write(raw); err != nil {
			return
		}
		if in.Buffered() == 0 && out.Flush() != nil {
			return
		}
	}
}

// isMessage reports whether a reply is a message of a subscription, in RESP2 or RESP3.
func isMessage(raw []byte) bool {
	return len(raw) > 1 && (raw[0] == '*' || raw[0] == '>') && bytes.HasPrefix(raw[1:], []byte("3\r\n$7\r\nmessage\r\n"))
}
