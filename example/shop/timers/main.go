// Timers moves a home-made table of timers to the outbox, and runs what is due.
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

// table is what many programs have before they have a queue.
const table = `CREATE TABLE timers (
	id BIGINT PRIMARY KEY, kind VARCHAR(100) NOT NULL, ref VARCHAR(100) NOT NULL,
	payload TEXT NOT NULL, run_at BIGINT NOT NULL, status VARCHAR(20) NOT NULL
)`

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	dir, err := os.MkdirTemp("", "timers")
	check(err)
	defer os.RemoveAll(dir)
	driver, dialect, dsn, lock := "pgx", outbox.Postgres, os.Getenv("DATABASE_URL"), " FOR UPDATE SKIP LOCKED"
	if dsn == "" {
		driver, dialect, dsn, lock = "sqlite", outbox.SQLite, sqliteIn(dir), ""
	}
	db, err := sql.Open(driver, dsn)
	check(err)
	box, err := outbox.New(dialect)
	check(cmp.Or(err, box.Migrate(ctx, db)))

	_, err = db.Exec(table)
	check(err)
	now := time.Now()
	check(cmp.Or(
		add(db, 1, "order:cancel", "order-1", now.Add(-time.Hour), "done"),
		add(db, 2, "order:cancel", "order-2", now.Add(-time.Second), "pending"), // overdue: it runs at once
		add(db, 3, "trial:end", "user-7", now.Add(30*24*time.Hour), "pending"),
		add(db, 4, "bad{kind}", "user-8", now, "pending"), // no topic can have this name
	))

	m := &mover{db: db, box: box, lock: lock}
	for range 2 { // to run it again does no harm
		moved, refused, err := m.move(ctx)
		check(err)
		fmt.Println(moved, "moved,", refused, "refused")
	}

	q, err := delayqtest.Open() // an embedded Redis
	check(err)
	ran := make(chan string)
	_, err = q.Serve(func(server *delayq.Server) {
		server.HandlerFunc("order:cancel", func(_ context.Context, job *delayq.Job) error {
			ran <- job.ID
			return nil
		})
	})
	check(err)
	done := make(chan error)
	go func() { done <- box.Relay(db, q.Client).Run(ctx) }()
	fmt.Println("cancelled", <-ran)
	for { // the row may still be on its way
		job, err := q.Client.Get(ctx, "trial:end", "user-7")
		if err == nil {
			fmt.Println("user-7 is", job.State)
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	check(cmp.Or(<-done, q.Close(), db.Close()))
}

// sqliteIn returns the address of a SQLite database in a directory.
func sqliteIn(dir string) string {
	return "file:" + filepath.Join(dir, "timers") + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate"
}

// add writes a row as the program did until now.
func add(db *sql.DB, id int, kind, ref string, at time.Time, status string) error {
	_, err := db.Exec("INSERT INTO timers (id, kind, ref, payload, run_at, status) VALUES ($1, $2, $3, '{}', $4, $5)",
		id, kind, ref, at.UnixMilli(), status)
	return err
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
