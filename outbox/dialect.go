package outbox

import (
	"fmt"
	"strconv"
	"strings"
)

// A Dialect is the kind of database that holds the tables.
type Dialect int

// The dialects. MySQL is for MySQL 8 and for MariaDB 10.6 and later. Postgres is for PostgreSQL 13
// and later, with any driver for database/sql.
const (
	Postgres Dialect = iota + 1
	MySQL
	SQLite
)

// String returns the name of the dialect, as [ParseDialect] reads it.
func (d Dialect) String() string {
	switch d {
	case Postgres:
		return "postgres"
	case MySQL:
		return "mysql"
	case SQLite:
		return "sqlite"
	}
	return "Dialect(" + strconv.Itoa(int(d)) + ")"
}

// ParseDialect returns the dialect of a name: postgres, mysql, mariadb or sqlite.
func ParseDialect(name string) (Dialect, error) {
	switch name {
	case "postgres":
		return Postgres, nil
	case "mysql", "mariadb":
		return MySQL, nil
	case "sqlite":
		return SQLite, nil
	}
	return 0, fmt.Errorf("%w: dialect %q: postgres, mysql, mariadb and sqlite are known", ErrInvalid, name)
}

// clock is the expression for the time of the database in Unix ms, while the statement runs.
func (d Dialect) clock() string {
	switch d {
	case Postgres:
		return "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
	case MySQL: // not UNIX_TIMESTAMP, which is an hour off when summer time ends
		return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(3)) DIV 1000)"
	default:
		return "CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)"
	}
}

// server is the expression for a text that tells a server from its replicas. A relay that reaches
// another server through the same address must not trust what it has read on the first one.
func (d Dialect) server() string {
	switch d {
	case Postgres:
		return "pg_postmaster_start_time()::text"
	case MySQL:
		return "CONCAT(@@server_id, ' ', @@hostname, ' ', @@port)"
	default:
		return "''"
	}
}

// rebind writes the placeholders of a statement, which are ?, as the dialect does.
func (d Dialect) rebind(query string) string {
	if d != Postgres {
		return query
	}
	var b strings.Builder
	n := 0
	for part := range strings.SplitSeq(query, "?") {
		if n > 0 {
			b.WriteString("$" + strconv.Itoa(n))
		}
		b.WriteString(part)
		n++
	}
	return b.String()
}

// ignore makes an INSERT do nothing if the key exists.
func (d Dialect) ignore(insert string) string {
	if d == MySQL {
		return strings.Replace(insert, "INSERT INTO", "INSERT IGNORE INTO", 1)
	}
	return insert + " ON CONFLICT DO NOTHING"
}

// A column is the type of one value in each dialect.
var columnTypes = map[Dialect]map[string]string{
	Postgres: {"seq": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "int": "bigint", "name": "text", "bytes": "bytea", "id": "bytea", "text": "text"},
	MySQL: {"seq": "BIGINT AUTO_INCREMENT PRIMARY KEY", "int": "BIGINT", "name": "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
		"bytes": "LONGBLOB", "id": "VARBINARY(1024)", "text": "TEXT CHARACTER SET utf8mb4"},
	SQLite: {"seq": "INTEGER PRIMARY KEY AUTOINCREMENT", "int": "INTEGER", "name": "TEXT", "bytes": "BLOB", "id": "BLOB", "text": "TEXT"},
}
