package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/delayq/delayq/faults/check"
	"github.com/delayq/delayq/faults/rig"
	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
)

// relays is how many relay processes a run with an outbox has.
const relays = 3

// upBox starts a PostgreSQL, or makes a file of SQLite where there is none, and the relays.
func (s *Soak) upBox() error {
	c := rig.BoxConfig{Dialect: outbox.Postgres}
	sqltest.Hasty = true // its processes die, but the machine does not
	db, err := sqltest.StartPostgres()
	switch {
	case errors.Is(err, sqltest.ErrMissing):
		path := filepath.Join(s.Dir, "outbox.db")
		c = rig.BoxConfig{Dialect: outbox.SQLite, DSN: "file:" + path + "?_txlock=immediate&_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)"}
	case err != nil:
		return err
	default:
		s.db, c.DSN = db, fmt.Sprintf(db.DSN, "postgres")
	}
	_, _ = fmt.Fprintln(s.Log, "outbox in", c.Dialect)
	if s.box, err = rig.OpenBox(context.Background(), c, s.rec); err != nil {
		return err
	}
	for i := range relays {
		name := fmt.Sprintf("relay%d", i+1)
		p, err := rig.NewProxy(s.server.Addr())
		if err != nil {
			return err
		}
		s.proxies[name] = p
		w, err := rig.StartWorker(rig.WorkerConfig{Name: name, Dir: s.Dir, Redis: rig.Redis{Addr: p.Addr()}, Prefix: prefix, Box: &c}, s.rec)
		if err != nil {
			return err
		}
		s.workers = append(s.workers, w)
	}
	return nil
}

// boxLeft finds rows that were not sent, and refused ones that no call has written.
func (s *Soak) boxLeft(ctx context.Context) (violations []check.Violation, err error) {
	if s.box == nil {
		return nil, nil
	}
	rows, waiting, dead, err := s.box.Left(ctx)
	for tries := 0; err != nil && tries < 100 && wait(ctx, 100*time.Millisecond); tries++ { // as in put
		rows, waiting, dead, err = s.box.Left(ctx)
	}
	if rows+waiting+dead > 0 {
		violations = append(violations, check.Violation{
			Rule: "I11", Text: fmt.Sprintf("%d rows and %d calls of the outbox are left, and %d dead rows of no call", rows, waiting, dead),
		})
	}
	return violations, err
}
