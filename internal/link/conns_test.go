package link

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A request without any answer casts suspicion on the connections to that address on which nothing
// was heard since, of all clients: not on one that is well, nor on one that was made later, nor on
// other addresses. One whose answer has begun to arrive is slow, and that is no ground for
// suspicion.
func TestSuspicion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := NewGroup()
		calls, waits := all.add(), all.add()
		far := map[net.Conn]net.Conn{}
		defer func() {
			for c := range far {
				_ = c.Close()
				_ = far[c].Close()
			}
			require.Empty(t, calls.conns)
			require.Empty(t, waits.conns)
		}()
		dial := func(d *Conns, addr string) net.Conn {
			var other net.Conn
			c, err := d.wrap(func(context.Context, string, string) (near net.Conn, err error) {
				near, other = net.Pipe()
				return near, nil
			})(t.Context(), "", addr)
			require.NoError(t, err)
			far[c] = other
			go func() { _, _ = io.Copy(io.Discard, other) }()
			return c
		}
		ask := func(c net.Conn) {
			_, err := c.Write([]byte("?"))
			require.NoError(t, err)
		}
		hear := func(c net.Conn) {
			go func() { _, _ = far[c].Write([]byte("!")) }()
			_, err := c.Read(make([]byte, 1))
			require.NoError(t, err)
		}
		closed := func(c net.Conn) bool {
			_ = c.SetReadDeadline(time.Now()) // an error if it is closed
			_, err := c.Read(make([]byte, 1))
			return err != nil && !isTimeout(err)
		}
		quiet, well, elsewhere := dial(calls, "node-1"), dial(calls, "node-1"), dial(calls, "node-2")
		pop := dial(waits, "node-1")
		slow := dial(calls, "node-1")
		for _, c := range []net.Conn{quiet, well, elsewhere, pop} {
			ask(c)
			hear(c)
		}
		time.Sleep(time.Second)

		ask(slow)
		hear(slow)
		require.NoError(t, slow.SetReadDeadline(time.Now().Add(time.Second)))
		_, err := slow.Read(make([]byte, 1))
		require.True(t, isTimeout(err))
		require.Len(t, calls.conns, 4, "of a slow answer nothing follows")

		mute := dial(calls, "node-1")
		time.Sleep(time.Second)
		ask(mute)
		require.NoError(t, mute.SetReadDeadline(time.Now().Add(3*time.Second)))
		time.Sleep(time.Second)
		ask(well)
		hear(well)
		later := dial(calls, "node-1")
		_, err = mute.Read(make([]byte, 1))
		require.True(t, isTimeout(err), "the cause is told, and not its consequence")
		for c, gone := range map[net.Conn]bool{quiet: true, pop: true, slow: true, well: false, later: false, elsewhere: false} {
			require.Equal(t, gone, closed(c))
		}
		_, err = pop.Read(make([]byte, 1))
		require.ErrorIs(t, err, ErrSuspected)
	})
}

// Trim closes the connections of a pool that nobody has used for a time, but for as many of each
// address as are to be kept. It leaves alone those that wait for a reply or for a message. go-redis
// notices what is closed, and a call does not fail because of it.
func TestTrim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		held := make(chan bool) // each call of SLOW waits for a value
		user := redis.NewClient(&redis.Options{
			Addr: "127.0.0.1:1", Protocol: 2, DisableIdentity: true,
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				go func() {
					defer func() { _ = far.Close() }()
					p := make([]byte, 100)
					for n, err := far.Read(p); err == nil; n, err = far.Read(p) {
						reply := "-ERR unknown command\r\n" // to HELLO
						if strings.Contains(string(p[:n]), "slow") {
							<-held
							reply = "+OK\r\n"
						}
						if _, err := far.Write([]byte(reply)); err != nil {
							return
						}
					}
				}()
				return near, nil
			},
		})
		defer func() { require.NoError(t, user.Close()) }()
		own, conns := New(user, NewGroup(), Options{PoolSize: 5, Client: func(*redis.Options) {}})
		defer func() { require.NoError(t, own.Close()) }()
		var calls sync.WaitGroup
		together := func(n int) {
			for range n {
				calls.Go(func() { require.NoError(t, own.Do(context.Background(), "slow").Err()) })
			}
			synctest.Wait()
		}
		answer := func(n int) {
			for range n {
				held <- true
			}
			synctest.Wait()
		}
		open := func() int { return conns.Open()["127.0.0.1:1"] }

		together(5)
		answer(4)
		time.Sleep(time.Second)
		conns.Trim(2, time.Second)
		require.Equal(t, 3, open(), "two are kept, and one waits for a reply")
		answer(1)
		calls.Wait()
		conns.Trim(0, time.Second)
		require.Equal(t, 1, open(), "one was used a moment ago")
		time.Sleep(time.Second)
		together(5)
		conns.Trim(0, 0)
		require.Equal(t, 5, open(), "closed connections were replaced, and all wait for a reply")
		answer(5)
		calls.Wait()
		conns.Trim(1, time.Second)
		require.Equal(t, 5, open())
		conns.Trim(0, 0)
		require.Zero(t, open())
	})
}

// Open names the connections, and Close ends them. After it, a new one is closed at birth: go-redis
// would log an error.
func TestClosedConnsMakeNoMore(t *testing.T) {
	t.Parallel()
	d := NewGroup().add()
	var last net.Conn
	dial := d.wrap(func(context.Context, string, string) (near net.Conn, err error) {
		near, last = net.Pipe()
		return near, nil
	})
	for _, addr := range []string{"a", "b", "b"} {
		_, err := dial(t.Context(), "", addr)
		require.NoError(t, err)
	}
	require.Equal(t, map[string]int{"a": 1, "b": 2}, d.Open())
	d.HangUp()
	require.Empty(t, d.Open())
	_, err := last.Write([]byte("x"))
	require.ErrorIs(t, err, io.ErrClosedPipe)
	_, err = dial(t.Context(), "", "a")
	require.NoError(t, err, "a new one can be made")
	d.Close()
	require.Empty(t, d.Open())
	dead, err := dial(t.Context(), "", "a")
	require.NoError(t, err)
	_, err = dead.Write([]byte("x"))
	require.ErrorIs(t, err, io.ErrClosedPipe)
	require.Empty(t, d.Open())
}

// A client of its own has the user's options, but for its pool and what would let it wait forever.
func TestOwnClient(t *testing.T) {
	t.Parallel()
	user := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Username: "ann", ReadTimeout: -1, MaxRetries: 7})
	defer func() { require.NoError(t, user.Close()) }()
	changed := 0
	own, conns := New(user, NewGroup(), Options{PoolSize: 5, Idle: 2, Client: func(*redis.Options) { changed++ }})
	defer func() { require.NoError(t, own.Close()) }()
	o := own.(*redis.Client).Options()
	require.Equal(t, 1, changed)
	require.Equal(t, "ann", o.Username)
	require.Equal(t, []any{5, 0, 0, CallTimeout}, []any{o.PoolSize, o.MaxIdleConns, o.MaxRetries, o.ReadTimeout})
	require.Empty(t, conns.Open())
	require.Equal(t, CallTimeout, AnswerTimeout(user))
	require.Equal(t, 7, user.Options().MaxRetries, "the user's is as it was")

	ring := redis.NewRing(&redis.RingOptions{})
	defer func() { require.NoError(t, ring.Close()) }()
	none, conns := New(ring, NewGroup(), Options{})
	require.True(t, none == nil && conns == nil)
}

// A timeout is a slow answer if Redis has answered another call meanwhile. On a cluster only
// answers about the same topic tell.
func TestPulse(t *testing.T) {
	t.Parallel()
	for _, cluster := range []bool{false, true} {
		p := &Pulse{Cluster: cluster}
		began := time.Now()
		require.NoError(t, p.Feel("q:{a}:ready", began, nil))
		require.ErrorIs(t, p.Feel("q:{a}:ready", began, redis.Nil), redis.Nil)
		require.True(t, Slowly(p.Feel("q:{a}:pool", began, context.DeadlineExceeded)))
		require.Equal(t, !cluster, Slowly(p.Feel("q:{b}:pool", began, context.DeadlineExceeded)))
		require.False(t, Slowly(p.Feel("q:{a}:pool", time.Now(), context.DeadlineExceeded)), "nothing since")
		require.False(t, Slowly(p.Feel("q:{a}:pool", began, io.EOF)), "a broken connection is not slow")
		slow := p.Feel("q:{a}:pool", began, context.DeadlineExceeded)
		require.ErrorIs(t, slow, context.DeadlineExceeded)
	}
}
