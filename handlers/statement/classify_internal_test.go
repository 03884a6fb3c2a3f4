package statement

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/outbox"
)

// A coded is an error of SQLite, whose driver has no way to make one.
type coded int

func (c coded) Error() string { return fmt.Sprintf("SQLite error %d", int(c)) }
func (c coded) Code() int     { return int(c) }

// Each code of each driver has the class that the documentation says. It is written out here, so
// that a code that is added, dropped or mistyped shows.
func TestEachCodeHasItsClass(t *testing.T) {
	check := func(d outbox.Dialect, err error, want class) {
		t.Helper()
		for _, err := range []error{err, fmt.Errorf("2 of 3: %w", err), fmt.Errorf("a: %w", fmt.Errorf("b: %w", err))} {
			require.Equal(t, want, classify(d, err), "%v: %v", d, err)
		}
	}
	for code, want := range map[string]class{
		"40001": again, "40P01": again, "40000": later, "40002": later, "40003": later,
		"42601": never, "42P01": never, "42703": never, "42501": never, "42883": never, "22001": never, "22003": never, "22007": never, "22P02": never,
		"23505": later, "23503": later, "23502": later, "23514": later, "08006": later, "08P01": later, "53300": later, "55P03": later, "57014": later, "57P01": later, "25P02": later, "P0001": later,
		"": later, "4000": later, "400011": later,
	} {
		check(outbox.Postgres, &pgconn.PgError{Code: code}, want)
	}
	againIn, neverIn := []uint16{1213, 1020}, []uint16{
		1146, 1054, 1049, 1064, 1136, 1305, 1109, 1142, 1143, 1370, 1044, 1264, 1265, 1292, 1366, 1406, 1367, 1411,
	}
	for number := range uint16(4200) {
		want := later
		switch {
		case slices.Contains(againIn, number):
			want = again
		case slices.Contains(neverIn, number):
			want = never
		}
		check(outbox.MySQL, &mysql.MySQLError{Number: number}, want)
	}
	for code := range 0x300 {
		want := map[int]class{5: again, 6: again, 1: never, 18: never, 20: never, 25: never}[code&0xff] // zero: later
		check(outbox.SQLite, coded(code), want)
	}
	for _, d := range []outbox.Dialect{outbox.Postgres, outbox.MySQL, outbox.SQLite} {
		require.Equal(t, later, classify(d, errors.New("connection refused")))
	}
	// A code of another database means nothing.
	require.Equal(t, later, classify(outbox.Postgres, &mysql.MySQLError{Number: 1064}))
	require.Equal(t, later, classify(outbox.MySQL, &pgconn.PgError{Code: "40001"}))
	require.Equal(t, later, classify(outbox.SQLite, &pgconn.PgError{Code: "40001"}))
}
