package statement_test

import (
	"context"
	"database/sql"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/handlers/statement"
	"github.com/delayq/delayq/outbox"
)

// A cut breaks a connection at one of its messages to the server: before the message is sent, or
// when the server has answered it, so that the answer is lost. For the server it is as if the
// client had been killed there.
type cut struct {
	at       int64
	answered bool
	sent     atomic.Int64
}

type cutConn struct {
	net.Conn
	cut *cut
}

func (c *cutConn) Write(p []byte) (int, error) {
	if c.cut.sent.Add(1) != c.cut.at {
		return c.Conn.Write(p)
	}
	if c.cut.answered {
		if _, err := c.Conn.Write(p); err == nil {
			_ = c.Conn.SetReadDeadline(time.Now().Add(time.Second)) // some messages have no answer
			_, _ = c.Conn.Read(make([]byte, 1<<16))
		}
	}
	_ = c.Conn.Close()
	return 0, io.ErrClosedPipe
}

// open returns a pool of one connection, which is cut.
func (c *cut) open(w *world) *sql.DB {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &cutConn{conn, c}, err
	}
	var db *sql.DB
	if w.dialect == outbox.Postgres {
		config, err := pgx.ParseConfig(w.dsn)
		require.NoError(w, err)
		config.DialFunc = dial
		db = stdlib.OpenDB(*config)
	} else {
		config, err := mysql.ParseDSN(w.dsn)
		require.NoError(w, err)
		config.DialFunc = dial
		connector, err := mysql.NewConnector(config)
		require.NoError(w, err)
		db = sql.OpenDB(connector)
	}
	db.SetMaxOpenConns(1)
	return db
}

// A client that dies at any message leaves the effect for the next run, or has had it: never half
// of it, and never twice.
func TestCutAtEachMessage(t *testing.T) {
	each(t, func(w *world) {
		if w.dialect == outbox.SQLite {
			w.Skip("it has no connection")
		}
		w.exec(count, begin)
		entries := map[string][]string{"both": {hit, "UPDATE hits SET n = n + 1 WHERE id = :other"}}
		fine := w.handler(entries)
		done, lost := 0, 0 // runs that were over before the cut, and effects whose answer was lost
		for _, answered := range []bool{false, true} {
			for at := int64(1); ; at++ {
				c := &cut{at: at, answered: answered}
				db := c.open(w)
				h, err := statement.New(db, w.dialect, entries)
				require.NoError(w, err)
				j := job(w, `{"statement": "both", "arguments": {"id": 1, "other": 2}}`)
				err = h.Handle(w.Context(), j)
				_ = db.Close()
				require.False(w, permanent(err), "message %d: %v", at, err)
				reached := c.sent.Load() >= at
				if err != nil && w.number("SELECT n FROM hits WHERE id = 1") > done {
					lost++
				}
				for err != nil {
					j = delayqtest.NextRun(j)
					err = fine.Handle(w.Context(), j)
				}
				done++
				for _, id := range []string{"1", "2"} {
					require.Equal(w, done, w.number("SELECT n FROM hits WHERE id = "+id), "message %d, answered: %v", at, answered)
				}
				if !reached {
					break
				}
			}
		}
		require.Greater(w, done, 8, "messages were cut")
		require.NotZero(w, lost, "an answer to COMMIT was lost")
	})
}
