package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// byTable divides rows by the table that has them.
func byTable(rows []stored) map[string][]stored {
	tables := make(map[string][]stored)
	for _, row := range rows {
		table := "{table}"
		if row.later {
			table = "{table}_later"
		}
		tables[table] = append(tables[table], row)
	}
	return tables
}

// load reads the rows of a plan that was committed before. A plan is sent whole, however large it
// is by the bounds of this release.
func (h *holding) load(ctx context.Context, plan []stored) ([]stored, error) {
	var rows []stored
	for table, some := range byTable(plan) {
		which, args := h.among(some)
		read, now, err := h.read(ctx, h.conn, table, "WHERE "+which, math.MaxInt64, args...)
		if err != nil {
			return nil, err
		}
		age(read, now)
		rows = append(rows, read...)
	}
	slices.SortFunc(rows, order)
	return rows, nil
}

// order is that of the rows in a plan. A cancel that stands for a later row has its key.
func order(a, b stored) int {
	if a.seq == b.seq && a.later != b.later {
		if a.later {
			return 1
		}
		return -1
	}
	return cmp.Compare(a.seq, b.seq)
}

// An execer is a database, a connection or a transaction.
type execer = Execer

// A session is a connection or a transaction.
type session interface {
	execer
	querier
}

// A querier is a database, a connection or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// among returns a condition for rows of the shard by their keys, and its arguments.
func (h *holding) among(rows []stored) (condition string, args []any) {
	condition, args = h.keyed(rows)
	if h.box.dialect == Postgres {
		// Not by an index with the shard: of one that has the due time too, all rows would be read.
		condition += " AND shard + 0 = " + strconv.Itoa(h.shard)
	}
	return condition, args
}

// keyed returns a condition for rows of all shards by their keys, and its arguments.
func (h *holding) keyed(rows []stored) (condition string, args []any) {
	if h.box.dialect == Postgres { // so that one prepared statement does for all
		return "seq = ANY(CAST(CAST(? AS text) AS bigint[]))", []any{"{" + list(rows) + "}"}
	}
	return "seq IN (" + list(rows) + ")", nil
}

// age gives rows their age at a time of the database. A row that was made later, before it was
// read, has a negative age.
func age(rows []stored, now int64) {
	for i := range rows {
		rows[i].Age = now - rows[i].made
	}
}

// read reads rows of a table up to a size, at least one, and the time of the database.
func (h *holding) read(ctx context.Context, q querier, table, which string, most int64, args ...any) (list []stored, now int64, err error) {
	list, now, err = h.outline(ctx, q, table, which, args...)
	if err != nil {
		return nil, 0, err
	}
	list, err = h.fill(ctx, q, table, "", list, most)
	return list, now, err
}

// outline reads rows without their records, except for small ones, and the time of the database.
func (h *holding) outline(ctx context.Context, q querier, table, which string, args ...any) (list []stored, now int64, err error) {
	rows, err := q.QueryContext(ctx, h.query("SELECT seq, kind, topic, id, replaces, due_at, delay_ms, made, LENGTH(record), CASE WHEN LENGTH(record) <= "+
		strconv.Itoa(inline)+" THEN record END, (SELECT {now}) FROM "+table+" "+which), args...)
	if err != nil {
		return nil, 0, h.box.explain(err)
	}
	defer rows.Close()
	for rows.Next() {
		s := stored{later: table == "{table}_later"}
		var id, record []byte
		if err := rows.Scan(&s.seq, &s.Kind, &s.Topic, &id, &s.Replace, &s.DueAt, &s.DueIn, &s.made, &s.size, &record, &now); err != nil {
			return nil, 0, err
		}
		s.ID, s.Record = string(id), string(record)
		list = append(list, s)
	}
	return list, now, errors.Join(rows.Err(), rows.Close())
}

// fill reads the large records of rows that have been outlined, in one query. It returns the first
// rows up to a size, at least one. A scope is one more condition for the rows of the table.
func (h *holding) fill(ctx context.Context, q querier, table, scope string, list []stored, most int64) ([]stored, error) {
	var large []stored
	bytes, n := int64(0), 0
	for ; n < len(list); n++ {
		if bytes += list[n].size; n > 0 && bytes > most {
			break
		}
		if int64(len(list[n].Record)) != list[n].size {
			large = append(large, list[n])
		}
	}
	if list = list[:n]; len(large) == 0 {
		return list, nil
	}
	which, args := h.among(large)
	rows, err := q.QueryContext(ctx, h.query("SELECT seq, record FROM "+table+" WHERE "+which+scope), args...)
	if err != nil {
		return nil, h.box.explain(err)
	}
	defer rows.Close()
	records := make(map[int64]string, len(large))
	for rows.Next() {
		var seq int64
		var record []byte
		if err := rows.Scan(&seq, &record); err != nil {
			return nil, err
		}
		records[seq] = string(record)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, err
	}
	for _, row := range large {
		if _, found := records[row.seq]; !found {
			return nil, disappeared(row.seq)
		}
	}
	for i := range list {
		if int64(len(list[i].Record)) != list[i].size {
			list[i].Record = records[list[i].seq]
		}
	}
	return list, nil
}

func disappeared(seq int64) error {
	return fmt.Errorf("outbox: row %d has disappeared", seq)
}

// mostGiven is how many rows a statement gives values of their own.
const mostGiven = 100

// given returns an expression that has a value of its own for each of some rows, by their keys, and
// its arguments. For other rows it has another value.
func given[T any](rows []T, key func(T) int64, value func(T) any, other string) (expression string, args []any) {
	for _, row := range rows {
		args = append(args, key(row), value(row))
	}
	return "CASE seq" + strings.Repeat(" WHEN ? THEN ?", len(rows)) + " ELSE " + other + " END", args
}

// list returns the keys of rows, separated by commas.
func list(rows []stored) string {
	text := make([]byte, 0, 8*len(rows))
	for i := range rows {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, rows[i].seq, 10)
	}
	return string(text)
}

// own returns a condition for rows of the shard with greater keys than one, and their order. It
// takes the shard and the key as its arguments. PostgreSQL could choose the index of the keys alone
// for an order by these, and then reads rows of other shards too, however many there are.
func (h *holding) own() (condition, order string) {
	if h.box.dialect == Postgres {
		return "(shard, seq) > (CAST(? AS bigint), CAST(? AS bigint)) AND shard <= " + strconv.Itoa(h.shard), " ORDER BY shard, seq"
	}
	return "shard = ? AND seq > ?", " ORDER BY seq"
}

// ordered gives work a connection, on which PostgreSQL reads rows by an index.
func (h *holding) ordered(ctx context.Context, work func(ctx context.Context) error) error {
	return h.using(ctx, func(ctx context.Context) error { return h.inOrder(ctx, work) })
}

// inOrder makes PostgreSQL read rows by an index, in the order of that, while work is done.
// Otherwise it could read all rows and sort them, for a statement that wants the first ones. The
// settings are those of a transaction, because a connection can be that of others too. Other
// databases read by the index anyway.
func (h *holding) inOrder(ctx context.Context, work func(ctx context.Context) error) error {
	if h.box.dialect != Postgres {
		return work(ctx)
	}
	if _, err := h.conn.ExecContext(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED"); err != nil {
		return err
	}
	most := strconv.FormatInt(h.within().Milliseconds(), 10)
	_, err := h.conn.ExecContext(ctx, "SELECT set_config('enable_sort', 'off', true), set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), "+
		"set_config('lock_timeout', '"+most+"', true), set_config('idle_in_transaction_session_timeout', '"+most+"', true)")
	if err != nil {
		return err
	}
	if err := work(ctx); err != nil { // and the connection is closed
		return err
	}
	_, err = h.conn.ExecContext(ctx, "COMMIT")
	return err
}
