package outbox

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/delayq/delayq"
)

// An Inbox makes the effect of a handler in the database happen once, however often the job runs.
// It is safe for concurrent use.
type Inbox struct {
	box          *Outbox
	insert, trim string
}

// NewInbox returns an inbox in the tables of an outbox of the same dialect and options:
// [Outbox.Migrate] creates its table too.
func NewInbox(d Dialect, opts ...Option) (*Inbox, error) {
	b, err := New(d, opts...)
	if err != nil {
		return nil, err
	}
	table := b.table + "_inbox"
	old := "SELECT nonce FROM " + table + " WHERE seen < (SELECT " + d.clock() + ") - ? ORDER BY seen LIMIT 1000"
	trim := "DELETE FROM " + table + " WHERE nonce IN (" + old + ")"
	switch d { // each is told to look up the rows by their keys
	case Postgres:
		trim = "DELETE FROM " + table + " WHERE nonce = ANY(ARRAY(" + old + "))"
	case MySQL:
		trim = "DELETE i FROM (" + old + ") AS old STRAIGHT_JOIN " + table + " AS i ON i.nonce = old.nonce"
	}
	return &Inbox{
		box:    b,
		insert: d.rebind(d.ignore("INSERT INTO " + table + " (nonce, topic, seen) VALUES (?, ?, " + d.clock() + ")")),
		trim:   d.rebind(trim),
	}, nil
}

// Once records in the handler's own transaction that it does the work of a job, and reports whether
// that is the first time. If it is not, the work was committed by an earlier run: return nil from
// the handler. If the transaction is rolled back, the record goes with it.
//
// The record is about this incarnation of the job ([delayq.Job.Nonce]): a job that is enqueued
// later with the same ID, or that replaces this one, is another one. While another transaction has
// recorded the same job and is open, Once waits for its end, or fails where the database does not
// wait.
//
// Errors: [ErrInvalid] for a nil job or transaction, or a *sql.DB or [Autocommit] in its place,
// because the record would stay without the work, [ErrSchema], or the error of the database.
func (in *Inbox) Once(ctx context.Context, tx Execer, job *delayq.Job) (first bool, err error) {
	if tx == nil || job == nil || job.Nonce() == "" {
		return false, fmt.Errorf("%w: Once needs a transaction and a job as a handler receives it", ErrInvalid)
	}
	if err := transaction(tx); err != nil {
		return false, fmt.Errorf("inbox: job %q of topic %q: %w", job.ID, job.Topic, err)
	}
	result, err := tx.ExecContext(ctx, in.insert, hex.EncodeToString([]byte(job.Nonce())), job.Topic)
	if err != nil {
		return false, fmt.Errorf("inbox: job %q of topic %q: %w", job.ID, job.Topic, in.box.explain(err))
	}
	n, err := result.RowsAffected()
	if err != nil {
		return false, fmt.Errorf("inbox: job %q of topic %q: %w", job.ID, job.Topic, err)
	}
	return n == 1, nil
}

// Trim deletes records that are older than age, by the database's clock, and returns their number.
// It deletes at most 1,000 in a statement, and ends after a statement that deletes fewer. A job
// that is run again after its record is gone does its work again, so age must be longer than the
// time from the first run of a job to its last.
func (in *Inbox) Trim(ctx context.Context, db Execer, age time.Duration) (deleted int64, err error) {
	if age < time.Minute {
		return 0, fmt.Errorf("%w: Trim(%v): at least 1m", ErrInvalid, age)
	}
	for {
		result, err := db.ExecContext(ctx, in.trim, age.Milliseconds())
		if err != nil {
			return deleted, fmt.Errorf("inbox: trim: %w", in.box.explain(err))
		}
		n, err := result.RowsAffected()
		if deleted += n; err != nil || n < 1000 {
			return deleted, err
		}
	}
}
