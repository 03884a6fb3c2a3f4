package statement

import (
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/delayq/delayq/outbox"
)

// A class is what an error of the database means for the job.
type class int

const (
	later class = iota // retried after the backoff
	again              // the transaction is repeated at once
	never              // the job is buried
)

// classify sorts an error by its code. It imports no driver: the error types of pgx and lib/pq have
// SQLState, that of modernc.org/sqlite has Code, and go-sql-driver/mysql's has a field Number.
func classify(d outbox.Dialect, err error) class {
	switch d {
	case outbox.Postgres:
		var coded interface {
			error
			SQLState() string
		}
		if !errors.As(err, &coded) || len(coded.SQLState()) != 5 {
			return later
		}
		switch state := coded.SQLState(); {
		case state == "40001", state == "40P01": // serialization_failure, deadlock_detected
			return again
		case strings.HasPrefix(state, "42"), strings.HasPrefix(state, "22"): // syntax or access rule, data
			return never
		}
	case outbox.MySQL:
		switch number := mysqlNumber(err); {
		case slices.Contains([]uint64{1213, 1020}, number): // deadlock, changed since the snapshot
			return again
		case slices.Contains([]uint64{
			1146, 1054, 1049, 1064, 1136, 1305, 1109, // missing: table, column, database, …; syntax
			1142, 1143, 1370, 1044, // rights
			1264, 1265, 1292, 1366, 1406, 1367, 1411, // values
		}, number):
			return never
		}
	default:
		var coded interface {
			error
			Code() int
		}
		if !errors.As(err, &coded) {
			return later
		}
		switch coded.Code() & 0xff { // the rest is the extended code
		case 5, 6: // SQLITE_BUSY, SQLITE_LOCKED
			return again
		case 1, 18, 20, 25: // SQLITE_ERROR, SQLITE_TOOBIG, SQLITE_MISMATCH, SQLITE_RANGE
			return never
		}
	}
	return later
}

// mysqlNumber returns the number of an error of MySQL, or 0.
func mysqlNumber(err error) (number uint64) {
	for e := err; e != nil; e = errors.Unwrap(e) {
		v := reflect.Indirect(reflect.ValueOf(e))
		if v.Kind() != reflect.Struct || v.Type().Name() != "MySQLError" {
			continue
		}
		if f := v.FieldByName("Number"); f.IsValid() && f.CanUint() {
			return f.Uint()
		}
	}
	return 0
}
