package sqltest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync/atomic"
)

// A Life is that of a process: a number of statements and calls of Redis. The last one is not
// carried out, or it is and its reply is lost. After that, nothing arrives any more.
type Life struct {
	left  atomic.Int64
	late  bool          // the last one is carried out
	Ended chan struct{} // closed by the last one

	Hear func(statement string) // is called before each statement; nil: nobody listens. Set it before Open.
}

// ErrDead is the error of whatever a dead process tries.
var ErrDead = errors.New("the process is dead")

// NewLife returns a life of some steps. late says that the last one is carried out.
func NewLife(steps int, late bool) *Life {
	l := &Life{late: late, Ended: make(chan struct{})}
	l.left.Store(int64(steps))
	return l
}

// Step is one step.
func (l *Life) Step(do func() error) error {
	switch left := l.left.Add(-1); {
	case left > 0:
		return do()
	case left == 0:
		defer close(l.Ended)
		if l.late {
			_ = do()
		}
	}
	return ErrDead
}

func (l *Life) heard(statement string) {
	if l.Hear != nil {
		l.Hear(statement)
	}
}

// Dead reports whether it is over.
func (l *Life) Dead() bool { return l.left.Load() <= 0 }

// Open opens a database whose connections die with a life.
func (l *Life) Open(under driver.Driver, dsn string) *sql.DB {
	return sql.OpenDB(connector{under, dsn, l})
}

// connector opens connections that die with a life.
type connector struct {
	under driver.Driver
	dsn   string
	*Life
}

func (c connector) Connect(context.Context) (driver.Conn, error) {
	if c.Dead() {
		return nil, ErrDead
	}
	conn, err := c.under.Open(c.dsn)
	return &mortalConn{conn, c.Life}, err
}

func (c connector) Driver() driver.Driver { return c.under }

type mortalConn struct {
	driver.Conn
	*Life
}

func (c *mortalConn) BeginTx(ctx context.Context, opts driver.TxOptions) (tx driver.Tx, err error) {
	err = c.Step(func() (err error) {
		tx, err = c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
		return err
	})
	return &mortalTx{tx, c.Life}, err
}

func (c *mortalConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (r driver.Result, err error) {
	c.heard(query)
	err = c.Step(func() (err error) {
		r, err = c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
		return err
	})
	return r, err
}

func (c *mortalConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (r driver.Rows, err error) {
	c.heard(query)
	err = c.Step(func() (err error) {
		r, err = c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
		return err
	})
	if err != nil && r != nil {
		_ = r.Close()
	}
	return r, err
}

func (c *mortalConn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := c.Conn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

func (c *mortalConn) IsValid() bool { return !c.Dead() }

type mortalTx struct {
	driver.Tx
	*Life
}

func (t *mortalTx) Commit() error { return t.Step(t.Tx.Commit) }

// Rollback of a dead process does nothing: the server rolls back when the connection is closed.
func (t *mortalTx) Rollback() error {
	if t.Dead() {
		return ErrDead
	}
	return t.Tx.Rollback()
}

// Left returns how many steps are left. It is negative after steps of the dead.
func (l *Life) Left() int64 { return l.left.Load() }
