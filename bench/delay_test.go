package main

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// farPair is a connection that is trip away from its other end, in the time of
// a synctest bubble.
func farPair(t *testing.T, trip time.Duration) (near, redis net.Conn, way *distance) {
	t.Helper()
	way = newDistance(trip, time.Sleep)
	end, redis := net.Pipe()
	near = way.conn(end)
	t.Cleanup(func() {
		_, _ = near.Close(), redis.Close()
		way.close()
	})
	return near, redis, way
}

// write writes p in its own time, and fails the test unless it can.
func write(t *testing.T, to net.Conn, p []byte) {
	go func() {
		if _, err := to.Write(p); err != nil {
			t.Error(err)
		}
	}()
}

// What is written arrives at once. What comes back is handed over a round trip
// later, to the nanosecond, and no later because something else came before.
func TestDistanceDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const trip = 1234567 * time.Nanosecond
		near, redis, _ := farPair(t, trip)
		start := time.Now()
		write(t, near, []byte("PING"))
		got := make([]byte, 8)
		if n, err := redis.Read(got); string(got[:n]) != "PING" || err != nil {
			t.Fatalf("got %q, %v", got[:n], err)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("a request took %s", took)
		}
		write(t, redis, []byte("PONG"))
		time.Sleep(trip / 2)
		write(t, redis, []byte("next"))
		for i, want := range []string{"PONG", "next"} {
			n, err := near.Read(got)
			if string(got[:n]) != want || err != nil {
				t.Fatalf("got %q, %v; want %q", got[:n], err, want)
			}
			if took, due := time.Since(start), trip+time.Duration(i)*(trip/2); took != due {
				t.Errorf("%q came after %s, want %s", want, took, due)
			}
		}
	})
}

// Many bytes take no longer than few, and all of them come.
func TestDistanceDoesNotLimitTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const trip = time.Millisecond
		near, redis, _ := farPair(t, trip)
		sent := bytes.Repeat([]byte("0123456789abcde\n"), mostHeld/16)
		start := time.Now()
		write(t, redis, sent)
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(near, got); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != trip {
			t.Errorf("all bytes have come after %s, want %s", took, trip)
		}
		if !bytes.Equal(got, sent) {
			t.Error("other bytes have come than were sent")
		}
	})
}

// A connection whose user does not read holds a bounded number of bytes, and
// keeps nothing back from others.
func TestDistanceIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const trip = time.Millisecond
		near, redis, way := farPair(t, trip)
		end, other := net.Pipe()
		second := way.conn(end)
		defer func() { _, _ = second.Close(), other.Close() }()
		sent := make([]byte, 2*mostHeld)
		write(t, redis, sent)
		synctest.Wait()
		c := near.(*farConn)
		c.mu.Lock()
		held := c.held.Len()
		c.mu.Unlock()
		if held < mostHeld || held >= mostHeld+readBytes {
			t.Errorf("%d bytes are held, want %d and less than a read more", held, mostHeld)
		}
		write(t, other, []byte("here"))
		got := make([]byte, 4)
		if _, err := io.ReadFull(second, got); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(near, sent); err != nil { // the rest comes as there is room
			t.Fatal(err)
		}
	})
}

// Deadlines of Read count for what is handed over, also those that are set
// while it waits. The connection can be used after one.
func TestDistanceHonoursDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const trip = 10 * time.Millisecond
		near, redis, _ := farPair(t, trip)
		start := time.Now()
		late := func(after time.Duration) {
			t.Helper()
			n, err := near.Read(make([]byte, 1))
			var timeout net.Error
			if n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
				t.Errorf("got %d bytes, %v", n, err)
			}
			if took := time.Since(start); took != after {
				t.Errorf("the deadline ended Read after %s, want %s", took, after)
			}
		}
		set := func(at time.Duration) {
			if err := near.SetReadDeadline(start.Add(at)); err != nil {
				t.Error(err)
			}
		}
		write(t, redis, []byte("x")) // has been sent, and has not come
		set(2 * time.Millisecond)
		late(2 * time.Millisecond)
		set(time.Hour)
		time.AfterFunc(time.Millisecond, func() { set(4 * time.Millisecond) })
		late(4 * time.Millisecond)
		if err := near.SetDeadline(time.Time{}); err != nil {
			t.Error(err)
		}
		if n, err := near.Read(make([]byte, 1)); n != 1 || err != nil || time.Since(start) != trip {
			t.Errorf("got %d bytes, %v after %s", n, err, time.Since(start))
		}
	})
}

// The end of the other side comes after what it has sent, and as late. That of
// our own is at once.
func TestDistanceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const trip = time.Millisecond
		near, redis, _ := farPair(t, trip)
		start := time.Now()
		write(t, redis, []byte("last"))
		synctest.Wait()
		if err := redis.Close(); err != nil {
			t.Error(err)
		}
		if got, err := io.ReadAll(near); string(got) != "last" || err != nil || time.Since(start) != trip {
			t.Errorf("got %q, %v after %s", got, err, time.Since(start))
		}

		near, _, _ = farPair(t, trip)
		start = time.Now()
		time.AfterFunc(trip, func() { _ = near.Close() })
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) || time.Since(start) != trip {
			t.Errorf("got %v after %s, want a Read that ends with Close", err, time.Since(start))
		}
	})
}
