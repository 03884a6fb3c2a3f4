// Package pgxoutbox lets an outbox and an inbox of delayq write in transactions of pgx, without
// database/sql.
//
//	tx, err := pool.Begin(ctx)
//	_, err = tx.Exec(ctx, `INSERT INTO orders …`)
//	job, err := ob.Enqueue(ctx, pgxoutbox.Tx(tx), "order:cancel", "42", payload)
//	err = tx.Commit(ctx) // now, and only now, the job will exist
//
// A relay needs a *sql.DB, which pgx makes of a pool:
//
//	err = ob.Relay(stdlib.OpenDBFromPool(pool), client).Run(ctx)
package pgxoutbox

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/delayq/delayq/outbox"
)

// An Execer executes a statement: a pgx.Tx, which can be nested in another one, a *pgx.Conn, a
// *pgxpool.Conn, or what wraps one. With a connection outside a transaction the row is committed at
// once.
type Execer interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
}

// Tx returns what the calls of an [outbox.Outbox] and an [outbox.Inbox] take as a transaction:
// Enqueue, Dequeue, Reschedule, Revive, Discard, Once and Trim. They validate, encode and return
// errors as with database/sql, and [errors.As] finds the [pgconn.PgError] of the database. The
// outbox must have the dialect [outbox.Postgres].
//
// The result is as safe for concurrent use as tx is. It works with every QueryExecMode of pgx. A
// nil tx is refused by those calls with [outbox.ErrInvalid]. Except by Trim and Discard, a
// *pgxpool.Pool is refused too: see [Autocommit].
func Tx(tx Execer) outbox.Execer {
	if tx == nil {
		return nil
	}
	if _, ok := tx.(*pgxpool.Pool); ok {
		return pooled{execer{tx}}
	}
	return execer{tx}
}

// Autocommit returns what writes a row outside of a transaction, for example by a *pgxpool.Pool, so
// that it is committed at once, whatever becomes of the caller's transactions. Once and Revive
// refuse it, because they are not whole without a transaction.
func Autocommit(db Execer) outbox.Execer {
	if db == nil {
		return nil
	}
	return autocommit{execer{db}}
}

// An autocommit is that of Autocommit.
type autocommit struct{ execer }

// Autocommits lets the outbox refuse it for calls that need a transaction.
func (autocommit) Autocommits() {}

// A pooled is a pool in place of a transaction.
type pooled struct{ execer }

// CommitsAtOnce lets the outbox refuse a pool.
func (pooled) CommitsAtOnce() {}

type execer struct{ tx Execer }

func (e execer) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tag, err := e.tx.Exec(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return result{tag}, nil
}

type result struct{ tag pgconn.CommandTag }

func (r result) RowsAffected() (int64, error) { return r.tag.RowsAffected(), nil }

// LastInsertId always fails: PostgreSQL has no such number.
func (result) LastInsertId() (int64, error) {
	return 0, errors.New("pgxoutbox: PostgreSQL has no LastInsertId")
}

// Batch returns what Enqueue, Dequeue and Reschedule of an [outbox.Outbox] take as a transaction.
// They validate and encode as ever, and then queue their INSERT in b, behind what b has, instead of
// executing it. So the row travels together with the statements of the caller, and costs no round
// trip of its own. b must be sent in a transaction:
//
//	b := &pgx.Batch{}
//	b.Queue(`INSERT INTO orders …`)
//	job, err := ob.Enqueue(ctx, pgxoutbox.Batch(b), "order:cancel", "42", payload)
//	err = tx.SendBatch(ctx, b).Close()
//
// An error of the database comes from the batch, as pgx returns it: it is not [outbox.ErrSchema] if
// the table is missing. The row is the result at its place in the batch. After an error of the call
// itself nothing has been queued.
//
// Once, Trim, Revive and Discard need the result of a statement, so they fail with a batch. A nil b
// is refused by Enqueue, Dequeue and Reschedule with [outbox.ErrInvalid]. The result is no safer
// for concurrent use than b is.
func Batch(b *pgx.Batch) outbox.Execer {
	if b == nil {
		return nil
	}
	return queuer{b}
}

type queuer struct{ batch *pgx.Batch }

func (q queuer) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return queued{q.batch, len(q.batch.QueuedQueries), q.batch.Queue(query, args...)}, nil
}

// A queued is a statement that has no result yet. Whoever asks for one cannot use a batch, so the
// statement is taken out of it.
type queued struct {
	batch *pgx.Batch
	at    int
	query *pgx.QueuedQuery
}

var errQueued = errors.New("pgxoutbox: a batch has no results before it is sent, so only Enqueue, Dequeue and Reschedule can use one")

func (q queued) RowsAffected() (int64, error) {
	if q.at < len(q.batch.QueuedQueries) && q.batch.QueuedQueries[q.at] == q.query {
		q.batch.QueuedQueries = slices.Delete(q.batch.QueuedQueries, q.at, q.at+1)
	}
	return 0, errQueued
}

func (q queued) LastInsertId() (int64, error) { return q.RowsAffected() }
