package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// version is the version of the tables. A relay does not work with another one.
const version = 1

// rowColumns lists the columns of a row and their types. Every table with rows has them.
var rowColumns = [][2]string{
	{"shard", "int"}, {"kind", "int"}, {"topic", "name"}, {"id", "id"}, {"replaces", "name"}, {"due_at", "int"},
	{"delay_ms", "int"}, {"made", "int"}, {"record", "bytes"},
}

var rowNames = func() string {
	names := make([]string, len(rowColumns))
	for i, column := range rowColumns {
		names[i] = column[0]
	}
	return strings.Join(names, ", ")
}()

// Schema returns the statements that create the tables, each ended by a semicolon, for a migration
// tool. They do nothing if the tables exist. The tables are the outbox itself, the shards with the
// state of the relays, the rows that Redis has refused, the rows beyond a [Horizon], the rows of
// [Keep], the requests of [Outbox.Resend], and the inbox.
func (b *Outbox) Schema() string { return strings.Join(b.statements(), ";\n\n") + ";\n" }

func (b *Outbox) statements() []string {
	types := columnTypes[b.dialect]
	table := func(name, first string, columns ...[2]string) string {
		text := "CREATE TABLE IF NOT EXISTS " + name + " (\n  " + first
		for _, column := range columns {
			text += ",\n  " + column[0] + " " + types[column[1]] + " NOT NULL"
		}
		return text + "\n)"
	}
	with := func(create, key string) string { return strings.TrimSuffix(create, "\n)") + ",\n  " + key + "\n)" }
	all := []string{
		table(b.table, "seq "+types["seq"], rowColumns...),
		"",
		table(b.table+"_shards", "shard "+types["int"]+" PRIMARY KEY",
			[2]string{"version", "int"}, [2]string{"name", "name"}, [2]string{"number", "int"}, [2]string{"plan", "bytes"},
			[2]string{"holder", "name"}, [2]string{"held_until", "int"}),
		table(b.table+"_dead", "seq "+types["int"]+" PRIMARY KEY",
			append(slices.Clone(rowColumns), [2]string{"reason", "text"}, [2]string{"refused", "int"})...),
		table(b.table+"_inbox", "nonce "+types["name"]+" PRIMARY KEY", [2]string{"topic", "name"}, [2]string{"seen", "int"}),
		"",
		table(b.table+"_later", "seq "+types["int"]+" PRIMARY KEY", append(slices.Clone(rowColumns), [2]string{"due", "int"})...),
		"", "",
		with(table(b.table+"_sent", "seq "+types["int"]+" NOT NULL", append(slices.Clone(rowColumns), [2]string{"sent", "int"},
			[2]string{"number", "int"}, [2]string{"span", "int"}, [2]string{"began", "int"}, [2]string{"slot", "int"})...), "PRIMARY KEY (shard, sent, seq)"),
		table(b.table+"_resend", "shard "+types["int"]+" PRIMARY KEY", [2]string{"since", "int"}),
	}
	index := func(name, on string) string {
		return "CREATE INDEX IF NOT EXISTS " + b.index(name) + " ON " + on
	}
	switch b.dialect {
	case Postgres:
		all[0] += " WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0)"
		// Each plan changes the row of its shard twice. Without room on its page for the new
		// version, each change would also change the index.
		all[2] += " WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0)"
		all[1] = index("shard", b.table+" (shard, seq)")
		all[5] = index("seen", b.table+"_inbox (seen)")
		all[7] = index("due", b.table+"_later (shard, due)")
		all[8] = index("job", b.table+"_later (topic, id)")
	case SQLite:
		all[1] = index("shard", b.table+" (shard, seq)")
		all[5] = index("seen", b.table+"_inbox (seen)")
		all[7] = index("due", b.table+"_later (shard, due)")
		all[8] = index("job", b.table+"_later (topic, id)")
	case MySQL: // it has no CREATE INDEX IF NOT EXISTS
		all[0] = with(all[0], "KEY by_shard (shard, seq)")
		all[4] = with(all[4], "KEY by_seen (seen)")
		all[6] = with(with(all[6], "KEY by_due (shard, due)"), "KEY by_job (topic, id)")
		for _, i := range []int{0, 2, 3, 4, 6, 9, 10} {
			all[i] += " ENGINE=InnoDB"
		}
	}
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

// index returns the name of an index of the outbox, which is in the schema of its table.
func (b *Outbox) index(name string) string {
	return strings.ReplaceAll(b.table[strings.LastIndexByte(b.table, '.')+1:], `"`, "") + "_" + name
}

// Migrate creates the tables that do not exist, with the statements of [Outbox.Schema]. MySQL
// commits each of them by itself. Several processes can call it at the same time. A database of
// SQLite that is locked is tried again for up to five seconds, or until the context ends.
func (b *Outbox) Migrate(ctx context.Context, db *sql.DB) error {
	for _, statement := range b.statements() {
		if err := migrate(ctx, db, statement); err != nil {
			return fmt.Errorf("outbox: migrate: %w", err)
		}
	}
	return nil
}

// migrate executes a statement of the schema until it does not meet one of another process.
func migrate(ctx context.Context, db *sql.DB, statement string) (err error) {
	for range 1 + migrateTries {
		if _, err = db.ExecContext(ctx, statement); err == nil || !crossed(err) {
			break
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(migratePause):
		}
	}
	return err
}

// migrateTries is how often a statement is executed again that has met one of another process, and
// migratePause is the time between two of them.
const (
	migrateTries = 100
	migratePause = 50 * time.Millisecond
)

// crossed reports whether a statement has failed because of one that another process executes: IF
// NOT EXISTS of PostgreSQL does not see what others have not committed yet, and SQLite refuses to
// change a lock without waiting for busy_timeout where two connections would wait for each other.
func crossed(err error) bool {
	text := strings.ToLower(err.Error())
	for _, sign := range []string{"already exists", "pg_type_typname_nsp_index", "pg_class_relname_nsp_index", "database is locked"} {
		if strings.Contains(text, sign) {
			return true
		}
	}
	return false
}

// ErrSchema is returned when a table is missing or does not have the columns of this release. Run
// [Outbox.Migrate], or the statements of [Outbox.Schema]. Nothing was written.
var ErrSchema = errors.New("outbox: the tables are missing or of another version")

// explain adds to an error of the database what to do about it. Drivers have no error in common, so
// this reads the text.
func (b *Outbox) explain(err error) error {
	if err == nil {
		return nil
	}
	text := strings.ToLower(err.Error())
	for _, sign := range []string{
		"no such table", "no such column", "has no column", "doesn't exist", "unknown column", "sqlstate 42p01", "sqlstate 42703", "does not exist",
	} {
		if strings.Contains(text, sign) && strings.Contains(text, strings.ToLower(b.index(""))[:len(b.index(""))-1]) {
			return fmt.Errorf("%w: run Migrate, or the statements of Schema: %w", ErrSchema, err)
		}
	}
	return err
}
