package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"hash/fnv"
	"regexp"
	"sync"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/friend"
)

// library has what delayq does for an outbox.
var library = friend.Of(new(delayq.Client))

// ErrInvalid is returned for an argument or an option out of range. Nothing was written. It is
// [delayq.ErrInvalid].
var ErrInvalid = delayq.ErrInvalid

// An Execer executes a statement in the caller's transaction: a *sql.Tx, a *sql.Conn, or what wraps
// one. A *sql.DB and what embeds one are refused where a transaction is needed: see [Autocommit].
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Autocommit returns what writes a row outside of a transaction, so that it is committed at once,
// whatever becomes of the caller's transactions. Enqueue, Start, Dequeue and Reschedule take it,
// and calls that need no transaction (Discard, Trim). Once and Revive refuse it. Its statements are
// those of db.
func Autocommit(db Execer) Execer {
	if db == nil {
		return nil
	}
	return autocommit{db}
}

type autocommit struct{ db Execer }

func (a autocommit) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return a.db.ExecContext(ctx, query, args...)
}

// Autocommits lets calls refuse it that are not whole without a transaction.
func (autocommit) Autocommits() {}

// transaction returns an error if tx cannot be one: writer has one, or it is that of Autocommit.
func transaction(tx Execer) error {
	if _, says := tx.(interface{ Autocommits() }); says {
		return fmt.Errorf("%w: Autocommit would commit one statement without the others: give the transaction", ErrInvalid)
	}
	return writer(tx)
}

// writer returns an error if a row cannot be written with tx: it is nil, or a *sql.DB or what
// embeds one, or says of itself that it commits at once.
func writer(tx Execer) error {
	if tx == nil {
		return fmt.Errorf("%w: nil transaction", ErrInvalid)
	}
	_, db := tx.(interface{ Stats() sql.DBStats })
	_, says := tx.(interface{ CommitsAtOnce() })
	if db || says {
		return fmt.Errorf("%w: a database in place of a transaction would commit at once: give the transaction, or see Autocommit", ErrInvalid)
	}
	return nil
}

// An Outbox writes calls of a client as rows. It is safe for concurrent use, holds no connection
// and need not be closed.
type Outbox struct {
	dialect Dialect
	table   string
	shards  int
	sealer  *delayq.Client
	insert  string

	mu     sync.Mutex
	nudges map[chan struct{}]struct{} // of the relays that run
}

// An Option configures an [Outbox].
type Option func(*Outbox) error

// Table sets the name of the table: letters, digits and underscores, at most 40, perhaps after a
// schema and a dot. The other tables add an ending to it. Default: delayq_outbox.
func Table(name string) Option {
	return func(b *Outbox) error {
		if !regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,39}\.)?[A-Za-z_][A-Za-z0-9_]{0,39}$`).MatchString(name) {
			return fmt.Errorf("%w: Table(%q): up to 40 letters, digits and underscores, perhaps after a schema and a dot", ErrInvalid, name)
		}
		b.table = name
		return nil
	}
}

// Shards sets into how many parts rows are divided by topic and ID. Rows of different parts can be
// sent by different relays at the same time, so more shards send faster. All programs that use the
// table must have the same number: only rows of one shard keep their order. Range: 1 to 64.
// Default: 1.
func Shards(n int) Option {
	return func(b *Outbox) error {
		if n < 1 || n > 64 {
			return fmt.Errorf("%w: Shards(%d): from 1 to 64", ErrInvalid, n)
		}
		b.shards = n
		return nil
	}
}

// ClientOptions sets the options by which jobs are validated and encoded: [delayq.Defaults],
// [delayq.MaxPayload] and [delayq.Hooks] with an [delayq.EnqueueHook]. Others have no effect here.
// Give the same ones to the client of the relay.
func ClientOptions(opts ...delayq.ClientOption) Option {
	return func(b *Outbox) (err error) {
		b.sealer, err = library.NewSealer(opts)
		return err
	}
}

// New returns an outbox in tables of a dialect. It does not use the database.
func New(d Dialect, opts ...Option) (*Outbox, error) {
	b := &Outbox{dialect: d, table: "delayq_outbox", shards: 1, nudges: make(map[chan struct{}]struct{})}
	if columnTypes[d] == nil {
		return nil, fmt.Errorf("%w: %v: Postgres, MySQL and SQLite are known", ErrInvalid, d)
	}
	b.sealer, _ = library.NewSealer(nil)
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: an option is nil", ErrInvalid)
		}
		if err := opt(b); err != nil {
			return nil, err
		}
	}
	b.insert = b.dialect.rebind("INSERT INTO " + b.table + " (" + rowNames + ") VALUES (?, ?, ?, ?, ?, ?, ?, " + b.dialect.clock() + ", ?)")
	return b, nil
}

// Enqueue writes a job in the caller's transaction. When that is committed, a relay stores the job
// in Redis, and the delay of [delayq.ProcessIn] and [delayq.ExpireIn] counts from this call, by the
// clock of the database. Enqueue validates and encodes as [delayq.Client.Enqueue] does. It neither
// begins nor ends a transaction.
//
// The returned job has no EnqueuedAt and no Due. If an unfinished job with the ID exists when the
// row is sent, the row goes to the dead rows, unless [delayq.Replace] is given: see [Outbox.Dead].
// So it does if the ID is closed by then. The time of [delayq.UniqueFor] counts from when the row
// is sent. The wait of [delayq.Debounce] counts from this call, and its longest from when the first
// row of the burst is sent. A relay of v0.1.0 knows neither these options nor [delayq.Latest] and
// [delayq.UnlessRunning], and moves such a row to the dead rows.
//
// Errors: [ErrInvalid], [ErrSchema], the context's error, or the error of the database. After
// ErrInvalid nothing was written. After an error of the database PostgreSQL lets the transaction
// only be rolled back.
func (b *Outbox) Enqueue(ctx context.Context, tx Execer, topic, id string, payload []byte, opts ...delayq.JobOption) (*delayq.Job, error) {
	row, job, err := library.SealEnqueue(ctx, b.sealer, delayq.NewJob{Topic: topic, ID: id, Payload: payload, Options: opts})
	if err == nil {
		err = b.write(ctx, tx, row)
	}
	if err != nil {
		return nil, err
	}
	return job, nil
}

// Dequeue cancels a job after the commit, as [delayq.Client.Dequeue] does. It is sent after every
// row about the same ID that was written before it, so it also cancels a job whose row has not been
// sent yet. If there is no such job by then, nothing happens.
//
// With a [delayq.Tombstone] the ID is closed for a time that counts from this call, by the clock of
// the database. If the topic has too many tombs, the job is cancelled, and the row goes to the dead
// rows with [delayq.ErrTooManyTombs]. A relay of v0.1.0 cancels without a tomb. Errors as from
// [Outbox.Enqueue].
func (b *Outbox) Dequeue(ctx context.Context, tx Execer, topic, id string, opts ...delayq.DequeueOption) error {
	row, err := library.SealCancel(ctx, b.sealer, topic, id, opts...)
	if err != nil {
		return err
	}
	return b.write(ctx, tx, row)
}

// Reschedule gives a job another due time after the commit, as [delayq.Client.Reschedule] does. A
// delay counts from this call, by the clock of the database. If the job is running, dead or gone by
// then, nothing happens. Errors as from [Outbox.Enqueue].
func (b *Outbox) Reschedule(ctx context.Context, tx Execer, topic, id string, due delayq.DueOption) error {
	row, err := library.SealReschedule(ctx, b.sealer, topic, id, due)
	if err != nil {
		return err
	}
	return b.write(ctx, tx, row)
}

// Start writes a flow in the caller's transaction: all of it in one row. When that is committed, a
// relay starts the flow in Redis, once, however often it dies meanwhile. Start checks and encodes
// as [delayq.Client.Start] does, and calls the same hooks.
//
// The deadline counts from this call, by the clock of the database. If a row is sent after it, the
// flow is given up as soon as it starts: its last step is buried with [delayq.KindDeadline], or run
// with [delayq.Flow.IgnoreFailures]. A flow is sent at once, whatever the [Horizon]. If an
// unfinished job has the ID of the last step by then, the row goes to the dead rows, as that of an
// Enqueue does. [Outbox.Dequeue] of the last step, written later, cancels the flow.
//
// After a transaction that was rolled back, the same Flow can be written again. Make another one
// for another flow. A relay of v0.1.0 moves the row to the dead rows, from which [Outbox.Revive]
// sends it again. Errors as from [Outbox.Enqueue].
func (b *Outbox) Start(ctx context.Context, tx Execer, f *delayq.Flow) (*delayq.Job, error) {
	row, last, err := library.SealFlow(ctx, b.sealer, f)
	if err == nil {
		err = b.write(ctx, tx, row)
	}
	if err != nil {
		return nil, err
	}
	return last, nil
}

func (b *Outbox) write(ctx context.Context, tx Execer, row commit.Row) error {
	if err := writer(tx); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, b.insert, b.shard(row.Topic, row.ID), int(row.Kind), row.Topic, []byte(row.ID), row.Replace, row.DueAt, row.DueIn, []byte(row.Record))
	if err != nil {
		return fmt.Errorf("outbox: write row of topic %q, job %q: %w", row.Topic, row.ID, b.explain(err))
	}
	return nil
}

// shard returns the shard of a job: FNV-1a of the topic, a zero byte and the ID.
func (b *Outbox) shard(topic, id string) int {
	if b.shards == 1 {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(topic + "\x00" + id))
	return int(h.Sum32() % uint32(b.shards))
}

// Nudge makes the relays of this Outbox in this process look for rows at once. Call it after the
// commit. Without it a row waits for up to [Poll].
func (b *Outbox) Nudge() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for nudge := range b.nudges {
		select {
		case nudge <- struct{}{}:
		default:
		}
	}
}
