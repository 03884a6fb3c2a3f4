package queuetest

import (
	"bytes"
	"context"
	"errors"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
)

// A Wire is the network between one process and an embedded Redis, for faults. It works inside and
// outside of bubbles.
//
//	Cut, Mend     connections break and none can be made, as when the process or Redis is gone
//	Freeze, Thaw  nothing passes, and connections stay open; what is on the way arrives after
//	              the thaw
//	Lose          the next request that contains a text is executed, its reply is lost, and the
//	              connection breaks
//	Die           like Lose, and the wire is cut from then on; or the request is not even
//	              executed
//	Deafen        connections that have subscribed break, and new ones cannot subscribe until
//	              the wire is healed
//	Stall         requests that contain a text do not pass, nor does what follows them on their
//	              connection
//	Delay, Rush   requests that contain a text are executed, and the answers wait
//	Narrow        all answers share that many bytes a second
//	Jitter        each part of a request or an answer is delayed for as long as a function says
type Wire struct {
	redis *embedded.Redis

	mu      sync.Mutex
	changed *sync.Cond
	down    bool
	frozen  bool
	losing  []string
	dying   string // text
	before  bool   // dying: the request does not arrive
	Stalled []string
	delayed string
	rate    float64   // bytes a second of the answers; 0: they take no time
	free    time.Time // from when on the next answer can pass
	hold    func() time.Duration
	carried int // bytes of answers
	lost    int
	sent    int // requests
	dialed  int
	conns   map[*wireConn]bool
	most    int // open at a time

	pops     map[string]int // blocking pops in flight, by the key
	mostPops int            // at a time, of one key
}

type wireConn struct {
	wire          *Wire
	client, redis net.Conn
	doomed        bool   // the reply that comes next is to be lost
	last          bool   // and with it all connections
	waits         bool   // for rush
	hears         bool   // has subscribed
	pops          string // the key of its blocking pop in flight; empty: none
	closed        bool
}

var errNoRoute = errors.New("no route to host")

func NewWire(r *embedded.Redis) *Wire {
	w := &Wire{redis: r, conns: make(map[*wireConn]bool), pops: make(map[string]int)}
	w.changed = sync.NewCond(&w.mu)
	return w
}

// Client returns a go-redis client whose connections are of this wire, like those of a server on
// this client. At the end of the test the wire is healed, so that nothing hangs on it.
func (w *Wire) Client(t *testing.T) *redis.Client {
	t.Helper()
	opts := w.redis.Options()
	opts.Dialer = func(context.Context, string, string) (net.Conn, error) { return w.dial() }
	rdb := redis.NewClient(opts)
	t.Cleanup(func() {
		_ = rdb.Close()
		w.Heal()
		time.Sleep(2 * time.Second) // go-redis looks once a second whether a client that could not dial is closed
	})
	return rdb
}

func (w *Wire) dial() (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dialed++
	if w.down {
		return nil, &net.OpError{Op: "dial", Net: "wire", Err: errNoRoute}
	}
	far, err := w.redis.Dial()
	if err != nil {
		return nil, err
	}
	near, inner := net.Pipe()
	c := &wireConn{wire: w, client: inner, redis: far}
	w.conns[c] = true
	w.most = max(w.most, len(w.conns))
	go c.carry(c.client, c.redis, true)
	go c.carry(c.redis, c.client, false)
	return near, nil
}

// carry copies what one side sends to the other.
func (c *wireConn) carry(from, to net.Conn, request bool) {
	defer c.close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil || !c.may(buf[:n], request) {
			return
		}
		for part := range slices.Chunk(buf[:n], 4<<10) { // so that connections share a narrow wire
			c.wire.pace(len(part), request)
			if _, err := to.Write(part); err != nil {
				return
			}
		}
	}
}

// pace waits as long as a part of a request or an answer takes on the way.
func (w *Wire) pace(n int, request bool) {
	w.mu.Lock()
	wait := time.Duration(0)
	if w.hold != nil {
		wait = w.hold()
	}
	if !request {
		w.carried += n
	}
	if w.rate > 0 && !request {
		if now := time.Now(); w.free.Before(now) {
			w.free = now
		}
		w.free = w.free.Add(time.Duration(float64(n) / w.rate * float64(time.Second)))
		wait += time.Until(w.free)
	}
	w.mu.Unlock()
	time.Sleep(wait)
}

// may waits until the bytes can pass, and reports whether they can at all.
func (c *wireConn) may(part []byte, request bool) bool {
	w := c.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	if request && w.delayed != "" && bytes.Contains(part, []byte(w.delayed)) {
		c.waits = true
	}
	for !c.closed && (w.frozen || request && containsAny(part, w.Stalled) >= 0 || !request && c.waits) {
		w.changed.Wait()
	}
	if w.down {
		return false // cut is about to close this connection too
	}
	if request {
		if part[0] == '*' { // otherwise the rest of a long one
			w.sent++
		}
		c.hears = c.hears || bytes.Contains(part, []byte(Subscribe))
		c.pop(part)
		if i := containsAny(part, w.losing); i >= 0 {
			w.losing = append(w.losing[:i], w.losing[i+1:]...)
			w.lost++
			c.doomed = true
		}
	}
	if request && w.dying != "" && bytes.Contains(part, []byte(w.dying)) {
		w.dying = ""
		w.lost++
		if w.before {
			w.down = true
			go w.Cut()
			return false
		}
		c.doomed, c.last = true, true
	}
	if !request {
		c.popped()
	}
	if request || !c.doomed {
		return true
	}
	if c.last {
		w.down = true
		go w.Cut()
	}
	return false
}

// pop notes that a request is a blocking pop. Wire.mu must be held.
func (c *wireConn) pop(part []byte) {
	if m := blockingPop.FindSubmatch(part); m != nil {
		w := c.wire
		c.pops = string(m[1])
		w.pops[c.pops]++
		w.mostPops = max(w.mostPops, w.pops[c.pops])
	}
}

// popped notes that no blocking pop is in flight. Wire.mu must be held.
func (c *wireConn) popped() {
	if c.pops != "" {
		c.wire.pops[c.pops]--
		c.pops = ""
	}
}

var blockingPop = regexp.MustCompile(`(?i)\r\nblmove\r\n\$\d+\r\n([^\r]+)\r\n`)

func containsAny(part []byte, texts []string) int {
	for i, text := range texts {
		if bytes.Contains(part, []byte(text)) {
			return i
		}
	}
	return -1
}

func (c *wireConn) close() {
	c.wire.mu.Lock()
	c.closed = true
	c.popped()
	delete(c.wire.conns, c)
	c.wire.changed.Broadcast()
	c.wire.mu.Unlock()
	_ = c.client.Close()
	_ = c.redis.Close()
}

// Set changes the state of the wire.
func (w *Wire) Set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	w.changed.Broadcast()
}

func (w *Wire) Cut() {
	w.Set(func() { w.down = true })
	w.closeAll(func(*wireConn) bool { return true })
}

func (w *Wire) Deafen() {
	w.Stall(Subscribe)
	w.closeAll(func(c *wireConn) bool { return c.hears })
}

const Subscribe = "subscribe"

func (w *Wire) closeAll(which func(*wireConn) bool) {
	w.mu.Lock()
	var conns []*wireConn
	for c := range w.conns {
		if which(c) {
			conns = append(conns, c)
		}
	}
	w.mu.Unlock()
	for _, c := range conns {
		c.close()
	}
}

func (w *Wire) Mend()                { w.Set(func() { w.down = false }) }
func (w *Wire) Freeze()              { w.Set(func() { w.frozen = true }) }
func (w *Wire) Thaw()                { w.Set(func() { w.frozen = false }) }
func (w *Wire) Lose(texts ...string) { w.Set(func() { w.losing = append(w.losing, texts...) }) }
func (w *Wire) Delay(text string)    { w.Set(func() { w.delayed = text }) }
func (w *Wire) Stall(text string)    { w.Set(func() { w.Stalled = append(w.Stalled, text) }) }

func (w *Wire) Narrow(bytesPerSecond float64) { w.Set(func() { w.rate = bytesPerSecond }) }

func (w *Wire) Jitter(hold func() time.Duration) { w.Set(func() { w.hold = hold }) }

// Open returns the number of connections.
func (w *Wire) Open() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.conns)
}

// MostOpen returns the most connections that were open at a time.
func (w *Wire) MostOpen() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.most
}

// MostPops returns the most blocking pops of one key that were in flight at a time.
func (w *Wire) MostPops() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mostPops
}

// Bytes returns the number of bytes of answers that have passed.
func (w *Wire) Bytes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.carried
}

func (w *Wire) Rush() {
	w.Set(func() {
		w.delayed = ""
		for c := range w.conns {
			c.waits = false
		}
	})
}

func (w *Wire) Heal() {
	w.Rush()
	w.Set(func() { w.down, w.frozen, w.losing, w.Stalled, w.rate, w.hold = false, false, nil, nil, 0, nil })
}

// Die cuts the wire at the next request that contains the text: before Redis has it, or after Redis
// has executed it.
func (w *Wire) Die(text string, before bool) { w.Set(func() { w.dying, w.before = text, before }) }

func (w *Wire) Alive() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.down
}

// Requests returns the number of requests that have passed. Those of a pipeline count as one.
func (w *Wire) Requests() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sent
}

func (w *Wire) Dials() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dialed
}

// Losses returns the number of lost replies.
func (w *Wire) Losses() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// Digest returns the text that a request to execute a script contains, if Redis knows the script.
func Digest(name string) string {
	sha := delayq.Scripts()[name]
	if sha == "" {
		panic("no script " + name)
	}
	return strings.ToLower(sha)
}
