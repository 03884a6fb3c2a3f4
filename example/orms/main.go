// Orms commits orders and jobs together with sqlx, bun, gorm and ent. Each hands the outbox its own
// transaction, and the jobs of rolled back orders do not exist.
//
//	go run ./example/orms
//
// It uses a temporary SQLite. Other databases need another dialect, here and in the mapper.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	_ "github.com/glebarez/go-sqlite"
	"github.com/glebarez/sqlite"
	"github.com/jmoiron/sqlx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"gorm.io/gorm"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/outbox"
)

func main() {
	dir, err := os.MkdirTemp("", "orms")
	if err != nil {
		log.Fatal(err)
	}
	err = run(context.Background(), filepath.Join(dir, "shop.db"))
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		log.Fatal(err)
	}
}

// errChanged is why an order is rolled back.
var errChanged = errors.New("the customer has changed their mind")

// A shop places orders. check is called before the commit, and its error is returned.
type shop func(ctx context.Context, id string, check func() error) error

func run(ctx context.Context, file string) error {
	db, err := sql.Open("sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	if err != nil {
		return err
	}
	defer db.Close()
	ob, err := outbox.New(outbox.SQLite)
	if err != nil {
		return err
	}
	if err := ob.Migrate(ctx, db); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE orders (id TEXT PRIMARY KEY)"); err != nil {
		return err
	}
	g, err := gorm.Open(sqlite.Dialector{Conn: db}, &gorm.Config{})
	if err != nil {
		return err
	}
	for _, s := range []struct {
		name  string
		place shop
	}{
		{"sqlx", withSqlx(ob, sqlx.NewDb(db, "sqlite"))},
		{"bun", withBun(ob, bun.NewDB(db, sqlitedialect.New()))},
		{"gorm", withGorm(ob, g)},
		{"ent", withEnt(ob, entsql.OpenDB(dialect.SQLite, db))},
	} {
		if err := s.place(ctx, s.name+"-1", func() error { return nil }); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if err := s.place(ctx, s.name+"-2", func() error { return errChanged }); !errors.Is(err, errChanged) {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return show(ctx, db)
}

// cancelLater writes the job of an order. Each mapper calls it with its own transaction.
func cancelLater(ctx context.Context, ob *outbox.Outbox, tx outbox.Execer, id string) error {
	_, err := ob.Enqueue(ctx, tx, "order:cancel", id, nil, delayq.ProcessIn(30*time.Minute))
	return err
}

func withSqlx(ob *outbox.Outbox, db *sqlx.DB) shop {
	return func(ctx context.Context, id string, check func() error) error {
		tx, err := db.BeginTxx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // it does nothing after a commit
		if _, err := tx.NamedExecContext(ctx, "INSERT INTO orders (id) VALUES (:id)", map[string]any{"id": id}); err != nil {
			return err
		}
		if err := errors.Join(cancelLater(ctx, ob, tx, id), check()); err != nil {
			return err
		}
		return tx.Commit()
	}
}

func withBun(ob *outbox.Outbox, db *bun.DB) shop {
	type order struct {
		bun.BaseModel `bun:"table:orders"`
		ID            string `bun:",pk"`
	}
	return func(ctx context.Context, id string, check func() error) error {
		return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
			if _, err := tx.NewInsert().Model(&order{ID: id}).Exec(ctx); err != nil {
				return err
			}
			return errors.Join(cancelLater(ctx, ob, tx, id), check())
		})
	}
}

func withGorm(ob *outbox.Outbox, db *gorm.DB) shop {
	type order struct{ ID string }
	return func(ctx context.Context, id string, check func() error) error {
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			if err := tx.Table("orders").Create(&order{ID: id}).Error; err != nil {
				return err
			}
			return errors.Join(cancelLater(ctx, ob, tx.Statement.ConnPool, id), check())
		})
	}
}

// withEnt uses the driver of ent. The Tx that ent generates has ExecContext too, with the feature
// sql/execquery.
func withEnt(ob *outbox.Outbox, db *entsql.Driver) shop {
	return func(ctx context.Context, id string, check func() error) error {
		began, err := db.Tx(ctx)
		if err != nil {
			return err
		}
		tx := began.(*entsql.Tx)
		defer func() { _ = tx.Rollback() }() // it does nothing after a commit
		insert, args := entsql.Dialect(dialect.SQLite).Insert("orders").Columns("id").Values(id).Query()
		if _, err := tx.ExecContext(ctx, insert, args...); err != nil {
			return err
		}
		if err := errors.Join(cancelLater(ctx, ob, tx, id), check()); err != nil {
			return err
		}
		return tx.Commit()
	}
}

// show prints the orders, and the rows that a relay would send.
func show(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, "SELECT o.id, b.topic, CAST(b.id AS TEXT) FROM orders AS o LEFT JOIN delayq_outbox AS b ON CAST(b.id AS TEXT) = o.id ORDER BY b.seq")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var order, topic, job string
		if err := rows.Scan(&order, &topic, &job); err != nil {
			return err
		}
		fmt.Println("order", order, "has the job", topic, job)
	}
	return rows.Err()
}
