package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"math"
	"slices"
	"strconv"
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
	if h.box.dialect == Postgres { // so that one prepared statement does for all
		return h.one("ANY(CAST(CAST(? AS text) AS bigint[]))"), []any{"{" + list(rows) + "}"}
	}
	return "seq IN (" + list(rows) + ")", nil
}

// one returns a condition for a row of the shard by its key.
func (h *holding) one(key string) string {
	return "shard = " + strconv.Itoa(h.shard) + " AND seq = " + key
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
	if err := rows.Err(); err != nil {
		return nil, 0, err
	}
	if err := rows.Close(); err != nil {
		return nil, 0, err
	}
	bytes := int64(0)
	for i := range list {
		if bytes += list[i].size; i > 0 && bytes > most {
			return list[:i], now, nil
		}
		if err := h.fill(ctx, q, table, &list[i]); err != nil {
			return nil, 0, err
		}
	}
	return list, now, nil
}

// fill reads the record of a row that has a large one.
func (h *holding) fill(ctx context.Context, q querier, table string, s *stored) error {
	if int64(len(s.Record)) == s.size {
		return nil
	}
	var record []byte
	if err := q.QueryRowContext(ctx, h.query("SELECT record FROM "+table+" WHERE "+h.one("?")), s.seq).Scan(&record); err != nil {
		return err
	}
	s.Record = string(record)
	return nil
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
