// Shop commits an order and its "cancel in 300 ms" in one transaction of its database. The payment
// and the cancel of the job are one transaction too.
//
// It uses the empty PostgreSQL database of DATABASE_URL, or a temporary SQLite.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/outbox"
)

const payWithin = 300 * time.Millisecond // stands for 30 minutes

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	dir, err := os.MkdirTemp("", "shop")
	check(err)
	defer os.RemoveAll(dir)
	driver, dialect, dsn := "pgx", outbox.Postgres, os.Getenv("DATABASE_URL")
	if dsn == "" {
		file := filepath.Join(dir, "shop")
		driver, dialect, dsn = "sqlite", outbox.SQLite, "file:"+file+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate"
	}
	s := &shop{}
	s.db, err = sql.Open(driver, dsn)
	check(err)
	s.box, err = outbox.New(dialect)
	check(err)
	s.inbox, err = outbox.NewInbox(dialect)
	check(cmp.Or(err, s.box.Migrate(ctx, s.db)))
	_, err = s.db.Exec("CREATE TABLE orders (id VARCHAR(100) PRIMARY KEY, state VARCHAR(20) NOT NULL)")
	check(err)

	q, err := delayqtest.Open() // an embedded Redis
	check(err)
	_, err = q.Serve(func(server *delayq.Server) { server.HandlerFunc("order:cancel", s.cancel) })
	check(err)
	done := make(chan error)
	go func() { done <- s.box.Relay(s.db, q.Client).Run(ctx) }()

	check(cmp.Or(s.place(ctx, "order-1"), s.place(ctx, "order-2"), s.pay(ctx, "order-2")))
	time.Sleep(4 * payWithin)
	for _, order := range []string{"order-1", "order-2"} {
		var state string
		check(s.db.QueryRow("SELECT state FROM orders WHERE id = $1", order).Scan(&state))
		fmt.Println(order, "is", state)
	}
	cancel()
	check(cmp.Or(<-done, q.Close(), s.db.Close()))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
