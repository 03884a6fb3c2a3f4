package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A FindingKind is the kind of a [Finding].
type FindingKind string

// The kinds of findings of [Outbox.Check].
const (
	// FindingNoTable is a table that is missing. Statement creates it, with its indexes.
	FindingNoTable FindingKind = "no_table"

	// FindingNoColumn is a table that lacks columns. It was created by another program or release.
	FindingNoColumn FindingKind = "no_column"

	// FindingVersion is a shard of another version of the tables. Relays of this release do not
	// run. Use the release that has written the version, or a newer one.
	FindingVersion FindingKind = "version"

	// FindingNoRelay is a shard that no relay holds, so that its rows are not sent. That is also
	// found for up to a [Lease] after the crash of a relay, and until the first relay has run.
	FindingNoRelay FindingKind = "no_relay"

	// FindingLostShard is rows of a shard that this outbox does not have, because they were written
	// with more [Shards]. No relay with fewer shards sends them.
	FindingLostShard FindingKind = "lost_shard"

	// FindingOldRow is a row that has waited for longer than the bound.
	FindingOldRow FindingKind = "old_row"

	// FindingDeadRows is rows that Redis has refused. [Outbox.Dead] lists them.
	FindingDeadRows FindingKind = "dead_rows"
)

// A Finding is one thing that is wrong with an outbox.
type Finding struct {
	Kind      FindingKind
	Table     string // its name
	Text      string // what is wrong
	Statement string // that repairs it, ended by a semicolon. Empty: no statement does.
}

// A CheckReport is the result of [Outbox.Check].
type CheckReport struct {
	Stats    Stats     // zero if its tables are not all there
	Findings []Finding // at most one for each table, and one of each other kind
}

// Check looks for what keeps rows from being sent: missing tables or columns, another version of
// the tables, shards without a relay, a row that has waited for longer than oldest, and dead rows.
// It writes nothing. It reads as much as [Outbox.Stats], and needs the right to read all tables of
// the outbox. A minute is a good bound. Rows beyond a [Horizon] do not count.
//
// Check does not look at indexes. It is safe for concurrent use.
//
// Errors: [ErrInvalid] if db is nil or oldest is below 1 ms, or the error of the database. If Check
// returns an error of the database, it also returns the report of the part that it has read.
func (b *Outbox) Check(ctx context.Context, db *sql.DB, oldest time.Duration) (*CheckReport, error) {
	if db == nil || oldest < time.Millisecond {
		return nil, fmt.Errorf("%w: Check needs a database and a bound of at least 1ms, not %v", ErrInvalid, oldest)
	}
	c := &checking{Outbox: b, db: db, report: new(CheckReport)}
	if err := c.check(ctx, oldest); err != nil {
		return c.report, fmt.Errorf("outbox: check: %w", err)
	}
	return c.report, nil
}

// A checking is a check in progress.
type checking struct {
	*Outbox
	db     *sql.DB
	report *CheckReport
	broken map[string]bool // tables that cannot be read
}

func (c *checking) found(kind FindingKind, table, statement, format string, args ...any) {
	c.report.Findings = append(c.report.Findings, Finding{kind, table, fmt.Sprintf(format, args...), statement})
}

func (c *checking) check(ctx context.Context, oldest time.Duration) error {
	c.broken = make(map[string]bool)
	for _, t := range c.tables() {
		if err := c.columns(ctx, t); err != nil {
			return err
		}
	}
	if err := c.shardRows(ctx); err != nil {
		return err
	}
	if c.broken[c.table] || c.broken[c.table+"_dead"] || c.broken[c.table+"_later"] {
		return nil
	}
	if err := c.lost(ctx); err != nil {
		return err
	}
	s, err := c.Stats(ctx, c.db)
	if err != nil {
		return err
	}
	c.report.Stats = s
	if s.Oldest > oldest {
		c.found(FindingOldRow, c.table, "", "the oldest row has waited for %v, and should be sent within %v", s.Oldest.Round(time.Millisecond), oldest)
	}
	if s.Dead > 0 {
		c.found(FindingDeadRows, c.table+"_dead", "", "rows that Redis has refused: %d", s.Dead)
	}
	return nil
}

// A checked is a table of an outbox.
type checked struct {
	name, statement string
	columns         []string
}

// tables returns the tables and what they should have, by the statements of the schema: a CREATE
// TABLE, and the indexes that follow it.
func (b *Outbox) tables() (list []*checked) {
	named := make(map[string]*checked)
	for _, statement := range b.statements() {
		head, body, _ := strings.Cut(statement, " (")
		if name, ok := strings.CutPrefix(head, "CREATE TABLE IF NOT EXISTS "); ok {
			t := &checked{name: name, statement: statement + ";"}
			body, _, _ = strings.Cut(body, "\n)")
			for line := range strings.SplitSeq(strings.TrimPrefix(body, "\n"), ",\n") {
				column, _, _ := strings.Cut(strings.TrimSpace(line), " ")
				if column != "PRIMARY" && column != "KEY" {
					t.columns = append(t.columns, column)
				}
			}
			list, named[name] = append(list, t), t
			continue
		}
		words := strings.Fields(head) // CREATE INDEX IF NOT EXISTS name ON table
		t := named[words[len(words)-1]]
		t.statement += "\n" + statement + ";"
	}
	return list
}

// columns finds out whether a table is there and has its columns.
func (c *checking) columns(ctx context.Context, t *checked) error {
	rows, failed := c.db.QueryContext(ctx, "SELECT "+strings.Join(t.columns, ", ")+" FROM "+t.name+" WHERE 1 = 0")
	if failed == nil {
		return rows.Close()
	}
	rows, err := c.db.QueryContext(ctx, "SELECT * FROM "+t.name+" WHERE 1 = 0")
	if err != nil {
		if err = c.explain(err); errors.Is(err, ErrSchema) {
			c.broken[t.name] = true
			c.found(FindingNoTable, t.name, t.statement, "the table is missing")
			return nil
		}
		return err
	}
	defer rows.Close()
	has, err := rows.Columns()
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(slices.Clone(t.columns), func(column string) bool { return slices.Contains(has, column) })
	if len(missing) == 0 {
		return failed
	}
	c.broken[t.name] = true
	c.found(FindingNoColumn, t.name, "", "the table lacks columns of this release: %s", strings.Join(missing, ", "))
	return rows.Close()
}

// shardRows looks at the versions and the holders of the shards.
func (c *checking) shardRows(ctx context.Context) error {
	table := c.table + "_shards"
	if c.broken[table] {
		return nil
	}
	rows, err := c.db.QueryContext(ctx, c.dialect.rebind("SELECT shard, version, held_until - "+c.dialect.clock()+" FROM "+table+" WHERE shard < ? ORDER BY shard"), c.shards)
	if err != nil {
		return err
	}
	defer rows.Close()
	held := make([]bool, c.shards)
	odd := ""
	for rows.Next() {
		var shard, has, left int64
		if err := rows.Scan(&shard, &has, &left); err != nil {
			return err
		}
		held[shard] = left >= 0
		if has != version && odd == "" {
			odd = fmt.Sprintf("shard %d has version %d, and this release needs %d", shard, has, version)
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if odd != "" {
		c.found(FindingVersion, table, "", "%s", odd)
	}
	var free []string
	for shard := range held {
		if !held[shard] {
			free = append(free, strconv.Itoa(shard))
		}
	}
	switch {
	case len(free) == 0:
	case c.shards == 1:
		c.found(FindingNoRelay, table, "", "no relay holds the shard")
	default:
		c.found(FindingNoRelay, table, "", "no relay holds these of the %d shards: %s", c.shards, strings.Join(free, ", "))
	}
	return nil
}

// lost looks for rows of shards that this outbox does not have.
func (c *checking) lost(ctx context.Context) error {
	var here, later int
	err := c.db.QueryRowContext(ctx, "SELECT COALESCE((SELECT MAX(shard) FROM "+c.table+"), 0), COALESCE((SELECT MAX(shard) FROM "+c.table+"_later), 0)").Scan(&here, &later)
	if err != nil {
		return err
	}
	if shard := max(here, later); shard >= c.shards {
		c.found(FindingLostShard, c.table, "", "rows of shard %d wait, and this outbox has %d, from 0 on", shard, c.shards)
	}
	return nil
}
