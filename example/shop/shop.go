package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/outbox"
)

type shop struct {
	db    *sql.DB
	box   *outbox.Outbox
	inbox *outbox.Inbox
}

// in calls work in a transaction.
func (s *shop) in(ctx context.Context, work func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := work(tx); err != nil {
		return err
	}
	defer s.box.Nudge()
	return tx.Commit()
}

func (s *shop) place(ctx context.Context, order string) error {
	return s.in(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id, state) VALUES ($1, 'open')", order); err != nil {
			return err
		}
		_, err := s.box.Enqueue(ctx, tx, "order:cancel", order, nil, delayq.ProcessIn(payWithin))
		return err
	})
}

func (s *shop) pay(ctx context.Context, order string) error {
	return s.in(ctx, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, "UPDATE orders SET state = 'paid' WHERE id = $1 AND state = 'open'", order)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, fmt.Errorf("order %q is not open", order))
		}
		return s.box.Dequeue(ctx, tx, "order:cancel", order)
	})
}

// cancel is the handler. The inbox makes its effect happen once.
func (s *shop) cancel(ctx context.Context, job *delayq.Job) error {
	return s.in(ctx, func(tx *sql.Tx) error {
		if first, err := s.inbox.Once(ctx, tx, job); err != nil || !first {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE orders SET state = 'cancelled' WHERE id = $1 AND state = 'open'", job.ID)
		return err
	})
}
