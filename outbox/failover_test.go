package outbox_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/outbox"
)

// A pair is a master and its replica. The world finds the one that is in use by a name.
type pair struct {
	*world
	master, replica *redistest.Server
	used            atomic.Value // address
	written         int
}

func eachPair(t *testing.T, test func(p *pair)) {
	redistest.Need(t)
	each(t, func(t *testing.T, d *database) {
		p := &pair{world: newWorld(t, d), master: redistest.Start(t, redistest.NoRoles...)}
		p.replica = redistest.Replica(t, p.master, redistest.NoRoles...)
		p.used.Store(p.master.Addr())
		opts := p.master.Options()
		opts.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, p.used.Load().(string))
		}
		p.rdb = redis.NewClient(opts)
		t.Cleanup(func() { _ = p.rdb.Close() })
		p.client, p.look = delayq.NewClient(p.rdb), delayq.NewInspector(p.rdb)
		test(p)
	})
}

// write commits rows of three topics, one in a transaction.
func (p *pair) write(n int) {
	p.Helper()
	for range n {
		_, err := p.ob.Enqueue(p.Context(), outbox.Autocommit(p.db), "t"+strconv.Itoa(p.written%3), strconv.Itoa(p.written), nil, delayq.ProcessIn(time.Hour))
		require.NoError(p, err)
		p.written++
	}
}

// stored returns how many jobs a server has.
func (p *pair) stored(rdb *redis.Client) (n int64) {
	for topic := range 3 {
		n += rdb.HLen(p.Context(), fmt.Sprintf("delayq:{t%d}:pool", topic)).Val()
	}
	return n
}

// promoted lets the world use the replica.
func (p *pair) promoted() {
	p.used.Store(p.replica.Addr())
	p.rdb = p.replica.Client(p.T)
}

// requireOnce makes sure that each row that was written has made a job once, by what the promoted
// server has.
func (p *pair) requireOnce() {
	p.Helper()
	p.drained()
	dead, err := p.ob.Dead(p.Context(), p.db, 0, 10)
	require.NoError(p, err)
	require.Empty(p, dead, "a second job of an ID would be refused")
	jobs, enqueued := make(map[string]bool), 0
	for topic := range 3 {
		for _, id := range p.jobs("t" + strconv.Itoa(topic)) {
			jobs[id] = true
		}
		n, err := p.rdb.HGet(p.Context(), fmt.Sprintf("delayq:{t%d}:stats", topic), "enqueued").Int()
		require.NoError(p, err)
		enqueued += n
	}
	require.Len(p, jobs, p.written)
	require.Equal(p, p.written, enqueued)
}

// An orderly failover loses nothing: Redis stops writing until the replica has everything. The
// relay meets calls that are refused and connections that end, in the middle of its plans.
func TestRelayMeetsAFailover(t *testing.T) {
	eachPair(t, func(p *pair) {
		p.relay(outbox.Batch(7))
		p.write(50)
		host, port, err := net.SplitHostPort(p.replica.Addr())
		require.NoError(p, err)
		old := p.master.Client(p.T)
		require.Eventually(p, func() bool { // the master learns late that the replica is in sync
			return old.Do(p.Context(), "FAILOVER", "TO", host, port).Err() == nil
		}, 10*time.Minute, time.Millisecond)
		p.write(50)
		require.Eventually(p, func() bool {
			role, err := old.Do(p.Context(), "ROLE").Slice()
			return err == nil && role[0] == "slave"
		}, 10*time.Minute, time.Millisecond)
		p.write(50) // nothing takes them
		p.promoted()
		p.write(50)
		p.requireOnce()
	})
}

// A failover while the old master takes writes loses them. What the relay has kept is sent again,
// and nothing twice that the replica had.
func TestRelayMeetsAFailoverThatLosesRows(t *testing.T) {
	eachPair(t, func(p *pair) {
		p.relay(outbox.Batch(7), outbox.Keep(time.Hour))
		p.write(50)
		p.drained()
		next := p.replica.Client(p.T)
		require.Eventually(p, func() bool { return p.stored(next) == 50 }, 10*time.Minute, time.Millisecond)
		require.NoError(p, next.Do(p.Context(), "REPLICAOF", "NO", "ONE").Err())
		p.write(50) // the relay sends them to the old master
		p.drained()
		require.NoError(p, p.master.Kill())
		p.write(50)
		p.promoted()
		p.write(50)
		p.drained()
		require.EqualValues(p, p.written-50, p.stored(next))

		n, err := p.ob.Resend(p.Context(), p.db, time.Now().Add(-time.Minute))
		require.NoError(p, err)
		require.EqualValues(p, p.written, n)
		require.Eventually(p, func() bool {
			var requests int
			return p.db.QueryRow("SELECT COUNT(*) FROM delayq_outbox_resend").Scan(&requests) == nil && requests == 0
		}, 10*time.Minute, time.Millisecond)
		p.requireOnce()
	})
}
