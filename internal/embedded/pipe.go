package embedded

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// network is the name of the network in addresses and errors.
const network = "embedded"

// endpoint is the address of both ends of every connection.
type endpoint struct{}

func (endpoint) Network() string { return network }
func (endpoint) String() string  { return network }

// pipe returns the two ends of a connection in memory.
//
// A write never waits for the reader. net.Pipe has no buffer, and miniredis needs one. A pipeline
// of more than a few kilobytes would block forever, because each side waits for the other to read.
// A PUBLISH to a subscriber that does not read would block the whole server. Errors are those of
// sockets, so that a client treats them like network errors.
func pipe() (net.Conn, net.Conn) {
	a, b := newStream(), newStream()
	return &conn{in: a, out: b}, &conn{in: b, out: a}
}

// conn is one end of a connection.
type conn struct {
	in, out *stream
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.in.read(p)
	if err != nil && err != io.EOF {
		err = &net.OpError{Op: "read", Net: network, Addr: endpoint{}, Err: err}
	}
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.out.write(p)
	if err != nil {
		err = &net.OpError{Op: "write", Net: network, Addr: endpoint{}, Err: err}
	}
	return n, err
}

func (c *conn) Close() error {
	c.in.closeReader()
	c.out.closeWriter()
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return endpoint{} }
func (c *conn) RemoteAddr() net.Addr { return endpoint{} }

func (c *conn) SetDeadline(t time.Time) error {
	c.in.readUntil(t)
	c.out.writeUntil(t)
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.readUntil(t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.writeUntil(t)
	return nil
}

// stream is one direction of a connection. It waits on a sync.Cond, which counts as durably blocked
// in a synctest bubble.
type stream struct {
	mu         sync.Mutex
	changed    *sync.Cond
	buf        bytes.Buffer
	readerGone bool
	writerGone bool
	readEnd    time.Time   // the read deadline, zero for none
	writeEnd   time.Time   // the write deadline, zero for none
	timer      *time.Timer // wakes the reader at readEnd; created with the first deadline
}

func newStream() *stream {
	s := &stream{}
	s.changed = sync.NewCond(&s.mu)
	return s
}

func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.readerGone:
			return 0, net.ErrClosed
		case passed(s.readEnd):
			return 0, os.ErrDeadlineExceeded
		case s.buf.Len() > 0:
			return s.buf.Read(p)
		case s.writerGone:
			return 0, io.EOF
		}
		s.changed.Wait()
	}
}

func (s *stream) write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.writerGone:
		return 0, net.ErrClosed
	case passed(s.writeEnd):
		return 0, os.ErrDeadlineExceeded
	case s.readerGone:
		return 0, syscall.EPIPE
	}
	n, err := s.buf.Write(p)
	s.changed.Broadcast()
	return n, err
}

func (s *stream) closeReader() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readerGone = true
	s.buf = bytes.Buffer{} // nobody will read it
	if s.timer != nil {
		s.timer.Stop()
	}
	s.changed.Broadcast()
}

func (s *stream) closeWriter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writerGone = true
	s.changed.Broadcast()
}

func (s *stream) readUntil(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readEnd = t
	switch {
	case s.timer != nil:
		s.timer.Stop()
		if !t.IsZero() && !s.readerGone {
			s.timer.Reset(time.Until(t))
		}
	case !t.IsZero() && !s.readerGone:
		s.timer = time.AfterFunc(time.Until(t), s.wake)
	}
	s.changed.Broadcast()
}

func (s *stream) writeUntil(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeEnd = t
}

// wake makes the reader check its deadline. The timer counts monotonic time and a deadline can be
// wall time, so the timer can fire a little early, and a late one can meet a newer deadline. In
// both cases the reader sleeps for the rest.
func (s *stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rest := time.Until(s.readEnd); rest > 0 && !s.readerGone {
		s.timer.Reset(rest)
	}
	s.changed.Broadcast()
}

// passed reports whether a deadline is over.
func passed(deadline time.Time) bool {
	return !deadline.IsZero() && !time.Now().Before(deadline)
}
