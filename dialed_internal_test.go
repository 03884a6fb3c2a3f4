package delayq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
)

// A server on a Cluster remembers its connections to all nodes, and closes them when it stops.
func TestConnectionsToAClusterAreRemembered(t *testing.T) {
	t.Parallel()
	rdb := redistest.SharedCluster(t).Client(t)
	require.Nil(t, rdb.Options().Dialer)
	s := NewServer(rdb, Prefix(redistest.Prefix(t)))
	s.HandlerFunc("a", func(context.Context, *Job) error { return nil })
	require.NoError(t, s.begin())
	defer s.close()
	calls, ok := s.calls.(*redis.ClusterClient)
	require.True(t, ok)
	require.NoError(t, calls.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.Ping(ctx).Err()
	}))
	d := s.dials[0]
	addrs := map[string]bool{}
	d.mu.Lock()
	for c := range d.conns {
		addrs[c.addr] = true
	}
	d.mu.Unlock()
	require.GreaterOrEqual(t, len(addrs), 3)
	s.close()
	require.Empty(t, d.conns)
	_, err := d.wrap(func(context.Context, string, string) (net.Conn, error) {
		near, _ := net.Pipe()
		return near, nil
	})(t.Context(), "", "")
	require.ErrorIs(t, err, net.ErrClosed, "none is made any more")
}

// A request without any answer casts suspicion on the connections to that address on which nothing
// was heard since, of all clients: not on one that is well, nor on one that was made later, nor on
// other addresses. One whose answer has begun to arrive is slow, and that is no ground for
// suspicion.
func TestSuspicion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := &dialedGroup{began: time.Now()}
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
		dial := func(d *dialed, addr string) net.Conn {
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
		require.ErrorIs(t, err, errSuspected)
	})
}

// A timeout is a slow answer if Redis has answered another call meanwhile. On a cluster only
// answers about the same topic tell.
func TestPulse(t *testing.T) {
	t.Parallel()
	for _, cluster := range []bool{false, true} {
		p := &pulse{cluster: cluster}
		began := time.Now()
		require.NoError(t, p.feel("q:{a}:ready", began, nil))
		require.ErrorIs(t, p.feel("q:{a}:ready", began, redis.Nil), redis.Nil)
		require.True(t, slowly(p.feel("q:{a}:pool", began, context.DeadlineExceeded)))
		require.Equal(t, !cluster, slowly(p.feel("q:{b}:pool", began, context.DeadlineExceeded)))
		require.False(t, slowly(p.feel("q:{a}:pool", time.Now(), context.DeadlineExceeded)), "nothing since")
		require.False(t, slowly(p.feel("q:{a}:pool", began, io.EOF)), "a broken connection is not slow")
		slow := p.feel("q:{a}:pool", began, context.DeadlineExceeded)
		require.ErrorIs(t, slow, context.DeadlineExceeded)
		require.False(t, certain(slow))
	}
}

// The first cause of an outage is the one that is logged, and not the closing of connections that
// it led to.
func TestFirstCauseOfAnOutage(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	lines := func(parts ...string) (n int) {
		for line := range strings.Lines(log.String()) {
			if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
				n++
			}
		}
		return n
	}
	cause, closed := errors.New("does not work"), fmt.Errorf("read tcp: %w", net.ErrClosed)
	o := &outage{log: slog.New(slog.NewTextHandler(&log, nil)), lost: func(error) {}}
	o.failed("take", cause)
	o.failed("promote", closed)
	o.answered("take")
	o.answered("promote")
	require.Equal(t, 1, lines("redis back"))
	o.failed("extend", closed) // what was closed then is met only now
	require.Equal(t, 2, lines("redis away"))
	require.Equal(t, 2, lines("redis away", cause.Error()))
	o.answered("extend")

	// The line is there before connections are closed.
	o = &outage{log: slog.New(slog.NewTextHandler(&log, nil)), lost: func(error) { require.Equal(t, 3, lines("redis away")) }}
	o.failed("take", cause)
}
