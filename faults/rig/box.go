package rig

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "modernc.org/sqlite"             // the driver sqlite

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/outbox"
)

// relayLease is for how long a killed relay of a worker process keeps its shards, and boxShards how
// many of them there are. A call of unknown outcome can be made twice once Redis has answered
// others for a lease and not that one. Here only a busy machine does that, for a second or two.
const (
	relayLease = 5 * time.Second
	boxShards  = 2
)

// A BoxConfig says where an outbox is.
type BoxConfig struct {
	Dialect outbox.Dialect // Postgres or SQLite
	DSN     string
}

func (c BoxConfig) open() (*sql.DB, *outbox.Outbox, error) {
	ob, err := outbox.New(c.Dialect, outbox.Shards(boxShards), outbox.ClientOptions(delayq.MaxPayload(MaxPayload)))
	if err != nil {
		return nil, nil, err
	}
	driver := "pgx"
	if c.Dialect == outbox.SQLite {
		driver = "sqlite"
	}
	db, err := sql.Open(driver, c.DSN)
	return db, ob, err
}

// relay runs a relay until ctx is done.
func (c BoxConfig) relay(ctx context.Context, rdb redis.UniversalClient, prefix string) error {
	db, ob, err := c.open()
	if err != nil {
		return err
	}
	client := delayq.NewClient(rdb, delayq.Prefix(prefix), delayq.MaxPayload(MaxPayload))
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	err = ob.Relay(db, client, outbox.Lease(relayLease), outbox.Poll(10*time.Millisecond), outbox.Logger(logger)).Run(ctx)
	return errors.Join(err, db.Close())
}

// A Box writes the calls of a [Client] as rows of an outbox, and writes them down like that one. A
// call ends when a relay has sent its row, and fails if its transaction is rolled back or the row
// is refused.
type Box struct {
	DB *sql.DB

	ob   *outbox.Outbox
	last string // the query for the key of the last row of a connection
	rec  *Recorder

	mu      sync.Mutex
	waiting []boxRow         // committed, in the order in which those about one ID were written
	refused map[int64]string // why rows of them are dead
}

// awayLimit is how long the database may be away.
const awayLimit = time.Minute

// A boxRow is a row and the call that it is.
type boxRow struct {
	seq  int64
	call Event
}

// OpenBox makes the tables. Call [Box.Follow] to have the outcomes of the calls.
func OpenBox(ctx context.Context, c BoxConfig, rec *Recorder) (*Box, error) {
	db, ob, err := c.open()
	if err != nil {
		return nil, err
	}
	last := "SELECT lastval()"
	if c.Dialect == outbox.SQLite {
		last = "SELECT last_insert_rowid()"
	}
	if err := ob.Migrate(ctx, db); err != nil {
		return nil, err
	}
	_, err = db.ExecContext(ctx, "CREATE TABLE commits (id text PRIMARY KEY)")
	return &Box{DB: db, ob: ob, last: last, rec: rec, refused: make(map[int64]string)}, err
}

// A BoxTx is a transaction that writes rows. One goroutine uses it.
type BoxTx struct {
	*Box
	id   string
	tx   *sql.Tx
	rows []boxRow
}

// noted is the statement that writes down that a transaction was committed, or that it was not.
const noted = "INSERT INTO commits (id) VALUES ($1) ON CONFLICT DO NOTHING"

// Begin begins a transaction.
func (b *Box) Begin(ctx context.Context) (*BoxTx, error) {
	tx, err := b.DB.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	id := rand.Text()
	if _, err := tx.ExecContext(ctx, noted, id); err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return &BoxTx{Box: b, id: id, tx: tx}, nil
}

// Put writes a task; with replace its ID may be taken.
func (t *BoxTx) Put(ctx context.Context, task *Task, replace bool) error {
	if replace {
		return t.put(ctx, task, OpReplace, delayq.Replace())
	}
	return t.put(ctx, task, OpEnqueue)
}

// PutOverDead writes a task whose ID a dead job may have.
func (t *BoxTx) PutOverDead(ctx context.Context, task *Task) error {
	return t.put(ctx, task, OpGiveWay, delayq.ReplaceDead())
}

func (t *BoxTx) put(ctx context.Context, task *Task, op string, way ...delayq.JobOption) error {
	e, payload, opts, err := task.prepare(op, way...)
	if err != nil {
		return err
	}
	return t.write(ctx, e, func() error {
		_, err := t.ob.Enqueue(ctx, t.tx, task.Topic, task.ID, payload, opts...)
		return err
	})
}

// Cancel writes the cancel of a task. Nobody knows in which state that will find it.
func (t *BoxTx) Cancel(ctx context.Context, task *Task) (delayq.State, error) {
	return "", t.write(ctx, Event{Op: OpCancel, Topic: task.Topic, ID: task.ID, Inc: task.Inc}, func() error {
		return t.ob.Dequeue(ctx, t.tx, task.Topic, task.ID)
	})
}

// Move writes another due time of a task.
func (t *BoxTx) Move(ctx context.Context, task *Task, delay time.Duration) error {
	e := Event{Op: OpReschedule, Topic: task.Topic, ID: task.ID, Inc: task.Inc, Delay: delay.Milliseconds()}
	return t.write(ctx, e, func() error {
		return t.ob.Reschedule(ctx, t.tx, task.Topic, task.ID, delayq.ProcessIn(delay))
	})
}

func (t *BoxTx) write(ctx context.Context, e Event, do func() error) error {
	e.Call, e.Type, e.Row = calls.Add(1), Invoke, true
	t.rec.Record(e)
	row := boxRow{call: e}
	err := do()
	if err == nil {
		err = t.tx.QueryRowContext(ctx, t.last).Scan(&row.seq)
	}
	t.rows = append(t.rows, row)
	return err
}

// End commits the rows or rolls them back, and reports whether they are committed. If the database
// does not say, End waits for up to a minute until it does.
func (t *BoxTx) End(commit bool) (committed bool, err error) {
	if !commit {
		_ = t.tx.Rollback() // it never was committed, also if the connection is gone
	} else if err = t.tx.Commit(); err == nil {
		committed = true
	} else if committed, err = t.wasCommitted(); err != nil {
		return false, err
	}
	if !committed {
		for _, row := range t.rows {
			t.answer(row, Fail, "rolled back", "")
		}
		return false, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting = append(t.waiting, t.rows...)
	return true, nil
}

// Rollback rolls the rows back.
func (t *BoxTx) Rollback() error {
	_, err := t.End(false)
	return err
}

// wasCommitted finds out what has become of a transaction, by writing what it has written. While
// that is open on the server, this waits for it.
func (t *BoxTx) wasCommitted() (committed bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), awayLimit)
	defer cancel()
	for {
		var result sql.Result
		if result, err = t.DB.ExecContext(ctx, noted, t.id); err == nil {
			n, err := result.RowsAffected()
			return n == 0, err
		}
		select {
		case <-ctx.Done():
			return false, err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (b *Box) answer(row boxRow, outcome, result, err string) {
	e := row.call
	e.Type, e.Result, e.Err = outcome, result, err
	b.rec.Record(e)
}

// Follow writes down what becomes of the rows until ctx is done. It looks once in a while. The
// database can be away for up to a minute.
func (b *Box) Follow(ctx context.Context, pause time.Duration) error {
	for last := time.Now(); ; {
		short, cancel := context.WithTimeout(ctx, 5*time.Second) // the server can be silent
		err := b.look(short)
		cancel()
		switch {
		case err == nil:
			last = time.Now()
		case ctx.Err() == nil && time.Since(last) > awayLimit:
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// look finds out which of the rows that waited were sent, and which of them were refused.
func (b *Box) look(ctx context.Context) error {
	b.mu.Lock()
	before := slices.Clone(b.waiting)
	b.mu.Unlock()
	if len(before) == 0 {
		return nil
	}
	left, err := b.left(ctx)
	if err != nil {
		return err
	}
	dead, err := b.ob.Dead(ctx, b.DB, 0, 1000)
	if err != nil {
		return err
	}
	for _, row := range dead { // and not forgotten, if the reply to Discard is lost
		b.refused[row.Seq] = row.Reason
	}
	sent := make(map[int64]bool)
	for _, row := range before {
		if left[row.seq] {
			continue
		}
		reason, refused := b.refused[row.seq]
		if refused {
			if _, err = b.ob.Discard(ctx, b.DB, row.seq); err != nil {
				break
			}
			b.answer(row, Fail, refusal(reason), reason)
			delete(b.refused, row.seq)
		} else {
			b.answer(row, OK, "", "")
		}
		sent[row.seq] = true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = slices.DeleteFunc(b.waiting, func(row boxRow) bool { return sent[row.seq] })
	return err
}

// left are the committed rows that have not been sent.
func (b *Box) left(ctx context.Context) (map[int64]bool, error) {
	rows, err := b.DB.QueryContext(ctx, "SELECT seq FROM delayq_outbox")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	left := make(map[int64]bool)
	for rows.Next() {
		var seq int64
		if err := rows.Scan(&seq); err != nil {
			return nil, err
		}
		left[seq] = true
	}
	return left, rows.Err()
}

// refusal names the kind of error that a dead row has as its reason, like documented.
func refusal(reason string) string {
	for _, known := range []struct {
		err  error
		name string
	}{{delayq.ErrDuplicate, "duplicate"}, {delayq.ErrInvalid, "invalid"}} {
		if strings.Contains(reason, known.err.Error()) {
			return known.name
		}
	}
	return ""
}

// Left is how many rows wait to be sent, how many calls wait for an outcome, and how many dead rows
// there are that belong to no call.
func (b *Box) Left(ctx context.Context) (rows, waiting, dead int, err error) {
	stats, err := b.ob.Stats(ctx, b.DB)
	b.mu.Lock()
	defer b.mu.Unlock()
	return int(stats.Rows), len(b.waiting), int(stats.Dead), err
}
