package main

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
)

// openDatabase opens the database of a URL. Without one it starts a PostgreSQL, as the tests of
// delayq do. Where that is not installed, and for the URL sqlite, it makes an SQLite file. stop
// removes what it has made.
func openDatabase(url string) (db *sql.DB, dialect outbox.Dialect, stop func(), err error) {
	if url != "" && url != "sqlite" {
		db, err = sql.Open("pgx", url)
		return db, outbox.Postgres, func() {}, err
	}
	if url == "" {
		dsn, stop, err := sqltest.Postgres()
		if err == nil {
			db, err := sql.Open("pgx", fmt.Sprintf(dsn, "postgres"))
			return db, outbox.Postgres, stop, err
		}
		if !errors.Is(err, sqltest.ErrMissing) {
			return nil, 0, nil, err
		}
	}
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		return nil, 0, nil, err
	}
	db, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "shop")+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	return db, outbox.SQLite, func() { _ = os.RemoveAll(dir) }, err
}
