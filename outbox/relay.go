package outbox

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/delayq/delayq"
)

// A Relay sends committed rows to Redis. Any number of relays of one table can run, in any
// processes: each shard has one at a time, which holds it by a lease in the database.
type Relay struct {
	box    *Outbox
	db     *sql.DB
	client *delayq.Client
	id     string
	o      relayOptions
	err    error

	mu             sync.Mutex
	running, ended bool
	notes          []note // of each shard
	deleted        int64  // dead rows
}

type relayOptions struct {
	poll    time.Duration
	lease   time.Duration
	batch   int
	horizon time.Duration // 0: none
	keep    time.Duration // 0: no row is kept
	drop    bool          // rows whose ID an unfinished job has
	dead    int           // rows that are kept …
	deadAge time.Duration // … for as long
	logger  *slog.Logger

	patience time.Duration
}

// A RelayOption configures a [Relay].
type RelayOption func(*relayOptions) error

// Poll sets how often a relay looks for rows while there are none. A look is one query that reads
// an index. Range: 1 ms to 1 minute. Default: 100 ms.
func Poll(d time.Duration) RelayOption {
	return func(o *relayOptions) error {
		o.poll = d
		return within("Poll", d, time.Millisecond, time.Minute)
	}
}

// Lease sets for how long a relay holds a shard without a sign of life. After a crash, other relays
// wait that long. Range: 1 s to 10 minutes. Default: 10 s.
func Lease(d time.Duration) RelayOption {
	return func(o *relayOptions) error {
		o.lease = d
		return within("Lease", d, time.Second, 10*time.Minute)
	}
}

// Batch sets how many rows are sent together. Their records have at most 4 MiB, or one has more.
// Range: 1 to 999. Default: 999.
func Batch(n int) RelayOption {
	return func(o *relayOptions) error {
		o.batch = n
		if n < 1 || n > mostRows {
			return fmt.Errorf("%w: Batch(%d): from 1 to %d", ErrInvalid, n, mostRows)
		}
		return nil
	}
}

// DropDuplicates makes a relay delete the row of an [Outbox.Enqueue] whose ID an unfinished job
// has. Without it such a row goes to the dead rows. Use it when an ID says that a job is wanted
// once, and callers would ignore [delayq.ErrDuplicate] of a client. Give it to all relays of a
// table or to none.
func DropDuplicates() RelayOption {
	return func(o *relayOptions) error {
		o.drop = true
		return nil
	}
}

// Logger sets where a relay logs refused rows, and when a database or Redis goes away and returns.
// Default: slog.Default().
func Logger(l *slog.Logger) RelayOption {
	return func(o *relayOptions) error {
		if o.logger = l; l == nil {
			return fmt.Errorf("%w: Logger(nil)", ErrInvalid)
		}
		return nil
	}
}

func within(option string, d, least, most time.Duration) error {
	if d < least || d > most {
		return fmt.Errorf("%w: %s(%v): from %v to %v", ErrInvalid, option, d, least, most)
	}
	return nil
}

// Bounds of a plan.
const (
	mostRows   = mostListed - 1
	mostListed = 1000 // that any release reads. The seal takes the place of a row.
	planBytes  = 4 << 20
	// inline is the size up to which records come with the list of rows. Larger ones are read when
	// the list is there, so that planBytes bounds what is in memory.
	inline = 4 << 10
)

// Relay returns a relay from the tables in db to the Redis of the client. It starts nothing. The
// caller owns db and the client. A relay uses one connection of db for each shard.
func (b *Outbox) Relay(db *sql.DB, client *delayq.Client, opts ...RelayOption) *Relay {
	r := &Relay{
		box: b, db: db, client: client, id: rand.Text(), notes: make([]note, b.shards),
		o: relayOptions{
			poll: 100 * time.Millisecond, lease: 10 * time.Second, batch: mostRows, logger: slog.Default(), patience: patience,
			dead: 1_000_000, deadAge: 90 * 24 * time.Hour,
		},
	}
	if db == nil || client == nil {
		r.err = fmt.Errorf("%w: a relay needs a database and a client", ErrInvalid)
	}
	for _, opt := range opts {
		if opt == nil {
			r.err = errors.Join(r.err, fmt.Errorf("%w: an option is nil", ErrInvalid))
			continue
		}
		r.err = errors.Join(r.err, opt(&r.o))
	}
	return r
}

// Run sends rows until ctx is done, and then returns nil once the batch in progress has ended or
// was abandoned. An abandoned batch is continued by the next relay. If the database or Redis is
// away, Run waits and tries again, at least once a second.
//
// Run returns an error at once if the relay is invalid ([ErrInvalid]) or if the tables are missing
// or of another version ([ErrSchema]).
func (r *Relay) Run(ctx context.Context) error {
	if r.err != nil {
		return r.err
	}
	r.starts(true)
	defer r.starts(false)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	for shard := range r.box.shards {
		group.Go(func() {
			if err := r.serve(ctx, shard); err != nil {
				cancel(err)
			}
		})
	}
	group.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, ErrSchema) {
		return cause
	}
	return nil
}

// serve is the loop of one shard.
func (r *Relay) serve(ctx context.Context, shard int) error {
	if ctx.Err() != nil { // there is nothing to release
		return nil
	}
	nudge := make(chan struct{}, 1)
	r.box.mu.Lock()
	r.box.nudges[nudge] = struct{}{}
	r.box.mu.Unlock()
	defer func() {
		r.box.mu.Lock()
		delete(r.box.nudges, nudge)
		r.box.mu.Unlock()
	}()
	h := &holding{Relay: r, shard: shard}
	defer h.release(ctx)
	var away time.Time
	for ctx.Err() == nil {
		wait, err := h.turn(ctx)
		if errors.Is(err, ErrSchema) {
			return err
		}
		r.note(h, err)
		switch {
		case err == nil && h.refused == nil && !away.IsZero():
			r.o.logger.Info("outbox relay continues", "shard", shard, "away", time.Since(away))
			away = time.Time{}
		case err != nil && ctx.Err() == nil && away.IsZero():
			away = time.Now()
			r.o.logger.Warn("outbox relay waits", "shard", shard, "err", err)
		}
		if err != nil {
			wait = max(wait, min(max(r.o.poll, time.Since(away)/4), time.Second))
		}
		if wait == 0 {
			continue
		}
		timer, nudged := time.NewTimer(wait), nudge
		if h.number == 0 {
			nudged = nil // it cannot do anything
		}
		select {
		case <-ctx.Done():
		case <-nudged:
			h.passed.looked = time.Time{}
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}
