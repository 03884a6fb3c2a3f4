package delayqtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
)

// defaultPrefix is the default of delayq, so that clients and servers without a Prefix find each
// other here.
const defaultPrefix = "delayq"

// defaultLimit is the default of Queue.Limit.
const defaultLimit = 10 * time.Second

// A Queue is an embedded Redis with a client. It is safe for concurrent use, but do not change its
// fields while a method runs.
type Queue struct {
	Client    *delayq.Client
	Inspector *delayq.Inspector // to read what the queue holds
	Redis     *redis.Client     // for NewServer and own delayq.Clients; repeats no command
	Prefix    string            // the prefix of Client. Default: "delayq"

	// Miniredis is the embedded Redis, to look inside and to inject faults (SetError). Do not use
	// its SetTime, Start, Restart and Close.
	Miniredis *miniredis.Miniredis

	// Limit is how much real time an Advance waits at most at one instant of Redis's clock until
	// all due jobs have run, and a Serve until its server is up. Increase it for very many jobs at
	// one instant. Decrease it to learn sooner about a handler that blocks. Default: 10 s.
	Limit time.Duration

	embedded  *embedded.Redis
	advancing sync.Mutex // held during an Advance, which has the next two
	renewed   time.Time  // the clock when the waiters were last renewed
	outcomes  map[string]time.Time
	ended     chan struct{} // holds one value when a job may have ended since the last look

	mu      sync.Mutex
	now     time.Time // Redis's clock; zero while it runs with time.Now
	servers []*served
	told    map[outcome]int64 // how often the hooks of the servers have received it
	closed  bool
}

// Open starts an embedded Redis. Its clock runs with time.Now until the first Advance. The options
// are those of the Client; their Prefix also applies to the servers of Serve. An invalid option is
// an error. Call Close at the end.
func Open(opts ...delayq.ClientOption) (*Queue, error) {
	inside := embedded.New()
	connect := inside.Options()
	// Close cuts calls, and in a bubble that is over no time passes in which to repeat them.
	connect.MaxRetries = -1
	rdb := redis.NewClient(connect)
	q := &Queue{
		Client: delayq.NewClient(rdb, opts...), Redis: rdb, Prefix: defaultPrefix, Miniredis: inside.Miniredis, Limit: defaultLimit,
		embedded: inside, ended: make(chan struct{}, 1), told: make(map[outcome]int64), outcomes: make(map[string]time.Time),
	}
	for _, opt := range opts {
		if p, ok := opt.(delayq.PrefixOption); ok {
			q.Prefix = string(p)
		}
	}
	q.Inspector = delayq.NewInspector(rdb, delayq.Prefix(q.Prefix))
	ctx, cancel := context.WithTimeout(context.Background(), q.Limit)
	defer cancel()
	if _, err := q.Client.Get(ctx, "open", "-"); !errors.Is(err, delayq.ErrNotFound) {
		return nil, errors.Join(fmt.Errorf("delayqtest: open: %w", err), q.Close())
	}
	return q, nil
}

// Close stops the servers of Serve as their stop functions do, and closes the embedded Redis and
// its clients. It returns the errors of servers that were not stopped before. A second call does
// nothing.
func (q *Queue) Close() error {
	q.mu.Lock()
	servers, closed := slices.Clone(q.servers), q.closed
	q.closed = true
	q.mu.Unlock()
	if closed {
		return nil
	}
	var errs []error
	for _, s := range servers {
		errs = append(errs, q.stop(s))
	}
	if err := q.Redis.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
		errs = append(errs, fmt.Errorf("delayqtest: close: %w", err))
	}
	q.embedded.Close()
	return errors.Join(errs...)
}

// Now returns the time by Redis's clock, in whole milliseconds while the clock stands still.
// Handlers and the code under test can call it.
func (q *Queue) Now() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.now.IsZero() {
		return time.Now()
	}
	return q.now
}

// Unfreeze makes Redis's clock run with time.Now. It is meant for tests in a testing/synctest
// bubble, and for tests that run in real time. It is an error if Advance has moved the clock ahead
// of time.Now, because Redis's clock must not go back.
func (q *Queue) Unfreeze() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ahead := time.Until(q.now).Round(time.Millisecond); ahead > time.Millisecond {
		return fmt.Errorf("delayqtest: unfreeze: Redis's clock is %v ahead of time.Now", ahead)
	}
	q.now = time.Time{}
	q.Miniredis.SetTime(q.now)
	// or all keys expire: SetTime took that for a step back to the year 1
	q.Miniredis.ClockTTL(true)
	return nil
}

// freeze stops the clock, if it runs, and returns the time.
func (q *Queue) freeze() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.now.IsZero() {
		q.setLocked(ceil(time.Now()))
	}
	return q.now
}

// set moves the clock.
func (q *Queue) set(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.setLocked(now)
}

func (q *Queue) setLocked(now time.Time) {
	q.now = now
	q.Miniredis.SetTime(now)
}

// ceil rounds up to the millisecond, as delayq rounds due times.
func ceil(t time.Time) time.Time {
	ms := t.UnixMilli()
	if t.Nanosecond()%int(time.Millisecond) != 0 {
		ms++
	}
	return time.UnixMilli(ms)
}
