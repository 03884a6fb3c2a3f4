package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"
)

// A long way to Redis is a process between the peers and Redis that passes
// each byte on a while later. It holds bytes up and does not limit their rate:
// what was read later is on its way while what was read before still waits. A
// process of its own, so that its work counts for neither peer.

// Bounds of what is on its way: chunks on the whole link and for one
// connection, and the bytes of a chunk.
const (
	linkChunks = 1 << 16
	connChunks = 1 << 12
	chunkBytes = 64 << 10
)

// chunk is what one read of a connection gave.
type chunk struct {
	due  time.Time // when it is passed on
	data *[]byte   // of the pool, chunkBytes long; nil is the end of the connection
	size int
	to   chan<- chunk
}

// link passes bytes on later.
type link struct {
	target string        // Redis
	delay  time.Duration // one way
	queue  chan chunk    // in the order of due, because the delay is the same for all
	pool   sync.Pool
}

// newLink makes a link to the Redis at target with a delay for each way.
func newLink(target string, delay time.Duration) *link {
	l := &link{target: target, delay: delay, queue: make(chan chunk, linkChunks)}
	l.pool.New = func() any { return new(make([]byte, chunkBytes)) }
	return l
}

// serve passes connections of the listener on until it is closed.
func (l *link) serve(listener net.Listener) error {
	go l.clock()
	for {
		near, err := listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			return fmt.Errorf("accept: %w", err)
		}
		far, err := net.Dial("tcp", l.target)
		if err != nil {
			return errors.Join(err, near.Close())
		}
		go l.read(near, far)
		go l.read(far, near)
	}
}

// clock hands every chunk to its writer when it is due. It has a thread of its
// own, because timers of Go may be a millisecond late on an idle machine.
func (l *link) clock() {
	runtime.LockOSThread()
	exactPauses()
	for c := range l.queue {
		if wait := time.Until(c.due); wait > 0 {
			pause(wait)
		}
		c.to <- c
	}
}

// read sends what comes from one side on its way to the other.
func (l *link) read(from, to net.Conn) {
	out := make(chan chunk, connChunks)
	go l.write(from, to, out)
	for {
		data := l.pool.Get().(*[]byte)
		n, err := from.Read(*data)
		if n > 0 {
			l.queue <- chunk{time.Now().Add(l.delay), data, n, out}
		}
		if err != nil {
			l.queue <- chunk{due: time.Now().Add(l.delay), to: out}
			return
		}
	}
}

// write writes what is due, until the end of the other side is. An error ends
// both sides, and with that the reader.
func (l *link) write(from, to net.Conn, out <-chan chunk) {
	for c := range out {
		if c.data == nil {
			break
		}
		if _, err := to.Write((*c.data)[:c.size]); err != nil {
			_ = from.Close() // the reader sends the end
		}
		l.pool.Put(c.data)
	}
	_, _ = from.Close(), to.Close() // either may have been closed by its peer
}

// runLink is the main function of the process of a link: it writes its address
// to out, and serves until stop ends.
func runLink(target string, delay time.Duration, stop io.Reader, out io.Writer) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, stop) // any end of it is the end
		_ = listener.Close()
	}()
	if _, err := fmt.Fprintln(out, listener.Addr()); err != nil {
		return err
	}
	return newLink(target, delay).serve(listener)
}

// startLink starts the process of a link to the Redis at target, and returns
// the address that takes its place. The function it returns ends it.
func startLink(ctx context.Context, target string, delay time.Duration) (addr string, end func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, fmt.Errorf("find the own program: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, "-link", target, "-delay", delay.String())
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("start the link: %w", err)
	}
	end = func() error {
		if err := errors.Join(stdin.Close(), cmd.Wait()); err != nil {
			return fmt.Errorf("link: %w", err)
		}
		return nil
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("read the address of the link: %w", err), end())
	}
	return strings.TrimSpace(line), end, nil
}
