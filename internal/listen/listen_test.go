package listen_test

import (
	"bufio"
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/listen"
	"github.com/delayq/delayq/internal/loop"
)

const (
	subscribed = "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
	pong       = "*2\r\n$4\r\npong\r\n$0\r\n\r\n"
	message    = "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n"
)

// A server is the part of a Redis that a subscription to the channel "c" meets.
type server struct {
	dials, pings atomic.Int32
	mute         atomic.Bool // it replies to no ping
	conn         atomic.Pointer[net.Conn]

	sends chan struct{} // has a token while it sends something: a mutex would stop the fake clock
}

func newServer() *server { return &server{sends: make(chan struct{}, 1)} }

// dial makes a connection to the server, which serves it until it is closed.
func (s *server) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	s.dials.Add(1)
	s.conn.Store(&far)
	go func() {
		for lines := bufio.NewScanner(far); lines.Scan(); {
			switch strings.ToLower(lines.Text()) {
			case "hello":
				s.write(0, "-ERR unknown command\r\n") // as Redis 5 says
			case "subscribe":
				s.write(0, subscribed)
			case "ping":
				if s.pings.Add(1); !s.mute.Load() {
					s.write(0, pong)
				}
			}
		}
	}()
	return near, nil
}

// write sends texts with pauses between them. It returns once all has been read, or the connection
// is closed.
func (s *server) write(pause time.Duration, texts ...string) {
	s.sends <- struct{}{}
	defer func() { <-s.sends }()
	for i, text := range texts {
		if i > 0 {
			time.Sleep(pause)
		}
		_, _ = (*s.conn.Load()).Write([]byte(text))
	}
}

// reading calls f in a bubble while the channel is read. It returns the texts of the messages, and
// the error of Read with the time until then.
func reading(t *testing.T, s *server, f func()) (texts []string, after time.Duration, err error) {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: s.dial, Protocol: 2, DisableIdentity: true, MaxRetries: -1})
	rdb.AddHook(listen.Hook{})
	defer func() { require.NoError(t, rdb.Close()) }()
	ctx, cancel := context.WithCancel(loop.Signed(t.Context(), new(loop.Sign)))
	began, done := time.Now(), make(chan struct{})
	go func() {
		defer close(done)
		err = listen.Read(ctx, rdb, []string{"c"}, time.Second, func(msg any) {
			if m, ok := msg.(*redis.Message); ok {
				texts = append(texts, m.Payload)
			}
		})
		after = time.Since(began)
	}()
	f()
	synctest.Wait()
	cancel()
	<-done
	return texts, after, err
}

// A message whose parts come before and after the test of the connection, or at that very instant,
// is one message of the same subscription.
func TestTestOfTheConnectionTearsNoMessage(t *testing.T) {
	for _, first := range []time.Duration{listen.Silence - time.Second, listen.Silence} {
		for cut := 1; cut < len(message); cut++ {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				texts, _, _ := reading(t, s, func() {
					time.Sleep(first)
					s.write(2*time.Second, message[:cut], message[cut:])
					time.Sleep(2*listen.Silence - 3*time.Second)
					s.write(0, message)
				})
				require.Equal(t, []string{"hello", "hello"}, texts, cut)
				require.EqualValues(t, 1, s.dials.Load(), cut)
			})
		}
	}
}

// A connection that is silent is tested, and kept as long as Redis replies.
func TestSilentConnectionIsTested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		_, after, _ := reading(t, s, func() { time.Sleep(time.Hour + time.Second) })
		require.Equal(t, time.Hour+time.Second, after)
		require.EqualValues(t, time.Hour/listen.Silence, s.pings.Load())
		require.EqualValues(t, 1, s.dials.Load())
	})
}

// A connection with messages is not tested.
func TestBusyConnectionIsNotTested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		texts, _, _ := reading(t, s, func() {
			for range 100 {
				time.Sleep(listen.Silence - time.Second)
				s.write(0, message)
			}
		})
		require.Len(t, texts, 100)
		require.Zero(t, s.pings.Load())
	})
}

// A connection without a reply to the test is dead.
func TestConnectionWithoutAReplyIsDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.mute.Store(true)
		_, after, err := reading(t, s, func() { time.Sleep(time.Hour) })
		require.Error(t, err)
		require.Equal(t, 2*listen.Silence, after)
		require.EqualValues(t, 1, s.pings.Load())
	})
}

// A connection that breaks ends the reading at once, without another dial, which could hang.
func TestBrokenConnectionIsNotDialledAgain(t *testing.T) {
	for _, after := range []time.Duration{time.Second, listen.Silence} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			_, ended, err := reading(t, s, func() {
				time.Sleep(after)
				require.NoError(t, (*s.conn.Load()).Close())
			})
			require.Error(t, err)
			require.Equal(t, after, ended)
			require.EqualValues(t, 1, s.dials.Load())
		})
	}
}
