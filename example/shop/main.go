// Shop commits an order and its "cancel in 2 s" in one transaction of its database. The payment and
// the cancel of the job are one transaction too.
//
//	go run -C example/shop .
//
// It uses the empty PostgreSQL database of DATABASE_URL. Without one it starts a temporary
// PostgreSQL where that is installed, and otherwise uses SQLite, as with DATABASE_URL=sqlite.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/outbox"
)

const payWithin = 2 * time.Second // stands for 30 minutes

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	db, dialect, stop, err := openDatabase(os.Getenv("DATABASE_URL"))
	check(err)
	defer stop()
	fmt.Println("the database is", dialect)
	s := &shop{db: db}
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
	for s.state("order-1") == "open" { // until its job has run
		time.Sleep(payWithin / 10)
	}
	for _, order := range []string{"order-1", "order-2"} {
		fmt.Println(order, "is", s.state(order))
	}
	cancel()
	check(cmp.Or(<-done, q.Close(), s.db.Close()))
}

func (s *shop) state(order string) (state string) {
	check(s.db.QueryRow("SELECT state FROM orders WHERE id = $1", order).Scan(&state))
	return state
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
