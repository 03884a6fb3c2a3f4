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

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/delayq/delayq/outbox"
)

// An Execer executes a statement: a pgx.Tx, which can be nested in another one, a *pgx.Conn, a
// *pgxpool.Conn, or what wraps one. With a connection outside a transaction, or a *pgxpool.Pool,
// the row is committed at once.
type Execer interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
}

// Tx returns what the calls of an [outbox.Outbox] and an [outbox.Inbox] take as a transaction:
// Enqueue, Dequeue, Reschedule, Revive, Discard, Once and Trim. They validate, encode and return
// errors as with database/sql, and [errors.As] finds the [pgconn.PgError] of the database. The
// outbox must have the dialect [outbox.Postgres].
//
// The result is as safe for concurrent use as tx is. It works with every QueryExecMode of pgx. A
// nil tx is refused by those calls with [outbox.ErrInvalid].
func Tx(tx Execer) outbox.Execer {
	if tx == nil {
		return nil
	}
	return execer{tx}
}

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
