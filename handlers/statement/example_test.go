package statement_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/handlers/statement"
	"github.com/delayq/delayq/outbox"
)

// must is for errors that an example does not have.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func Example() {
	ctx := context.Background()
	db := must(sql.Open("sqlite", "file:example?mode=memory"))
	db.SetMaxOpenConns(1) // the database is that connection
	must(db.Exec("CREATE TABLE sessions (id INT, idle_days INT)"))
	must(db.Exec("INSERT INTO sessions VALUES (1, 0), (2, 9), (3, 10)"))
	if err := must(outbox.New(outbox.SQLite)).Migrate(ctx, db); err != nil { // the table of the inbox
		panic(err)
	}
	clean := must(statement.New(db, outbox.SQLite, map[string][]string{
		"clean-zombies": {"DELETE FROM sessions WHERE idle_days > :days"},
	}))

	q := must(delayqtest.Open()) // in a program: a client and a server of a Redis
	defer q.Close()
	must(q.Serve(func(s *delayq.Server) { s.Handle("sql", clean) }))
	payload := []byte(`{"statement": "clean-zombies", "arguments": {"days": 3}}`)
	must(q.Client.Enqueue(ctx, "sql", "zombies", payload))
	if err := q.Advance(ctx, 0); err != nil {
		panic(err)
	}
	var left int
	if err := db.QueryRow("SELECT COUNT(*) FROM sessions").Scan(&left); err != nil {
		panic(err)
	}
	fmt.Println(left)
	// Output: 1
}
