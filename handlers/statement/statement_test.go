package statement_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/handlers/statement"
	"github.com/delayq/delayq/outbox"
)

const (
	count = "CREATE TABLE hits (id INT PRIMARY KEY, n INT NOT NULL)"
	begin = "INSERT INTO hits VALUES (1, 0), (2, 0)"
	hit   = `UPDATE hits SET n = n + 1 WHERE id = :id`
)

func TestEffectHappensOnce(t *testing.T) {
	each(t, func(w *world) {
		w.exec(count, begin)
		h := w.handler(map[string][]string{"hit": {hit}, "both": {"UPDATE hits SET n = n + 10 WHERE id = :a", "UPDATE hits SET n = n + 10 WHERE id = :b"}})
		j := job(t, `{"statement": "hit", "arguments": {"id": 1}}`)
		for run := range 3 {
			require.NoError(w, h.Handle(w.Context(), j))
			require.Equal(w, []string{"statement 1: rows affected: 1\n", "an earlier run has done it\n"}[min(run, 1)], string(j.Output()))
			j = delayqtest.NextRun(j)
		}
		require.Equal(w, 1, w.number("SELECT n FROM hits WHERE id = 1"))
		require.NoError(w, h.Handle(w.Context(), job(t, string(j.Payload)))) // a later job of the same ID
		require.Equal(w, 2, w.number("SELECT n FROM hits WHERE id = 1"))
		require.NoError(w, h.Handle(w.Context(), job(t, `{"statement": "both", "arguments": {"b": 2, "a": 1}}`)))
		require.Equal(w, 12, w.number("SELECT n FROM hits WHERE id = 1"))
		require.Equal(w, 10, w.number("SELECT n FROM hits WHERE id = 2"))

		same := job(t, `{"statement": "hit", "arguments": {"id": 2}}`)
		var all sync.WaitGroup
		for range 8 { // a job whose lease is lost can run twice at a time
			all.Go(func() {
				for h.Handle(w.Context(), same) != nil {
				}
			})
		}
		all.Wait()
		require.Equal(w, 11, w.number("SELECT n FROM hits WHERE id = 2"))
	})
}

func TestArguments(t *testing.T) {
	each(t, func(w *world) {
		text := map[outbox.Dialect]string{outbox.MySQL: "VARCHAR(200)"}[w.dialect]
		if text == "" {
			text = "TEXT"
		}
		w.exec("CREATE TABLE v (i BIGINT, d DECIMAL(20,2), f DOUBLE PRECISION, s " + text + ", b BOOLEAN, x " + text + ")")
		h := w.handler(map[string][]string{"put": {"INSERT INTO v (i, d, f, s, b, x) VALUES (:i, :d, :f, :s, :b, :x)"}})
		evil := `'); DROP TABLE v; -- :i ? $1 \' \" ü`
		require.NoError(w, h.Handle(w.Context(), job(t, fmt.Sprintf(
			`{"statement": "put", "arguments": {"i": -9223372036854775808, "d": "12345.67", "f": 1.5e3, "s": %q, "b": true, "x": null}}`, evil))))
		var i int64
		var d, s string
		var f float64
		var b bool
		var x sql.NullString
		require.NoError(w, w.db.QueryRow("SELECT i, d, f, s, b, x FROM v").Scan(&i, &d, &f, &s, &b, &x))
		require.Equal(w, []any{int64(-1 << 63), "12345.67", 1500.0, evil, true, false}, []any{i, d, f, s, b, x.Valid})
	})
}

func TestFailureLeavesNothing(t *testing.T) {
	each(t, func(w *world) {
		w.exec(count, begin)
		h := w.handler(map[string][]string{"two": {hit, "INSERT INTO hits VALUES (:other, 0)"}})
		j := job(t, `{"statement": "two", "arguments": {"id": 1, "other": 2}}`)
		err := h.Handle(w.Context(), j)
		require.ErrorContains(w, err, `statement: "two": 2 of 2:`)
		require.False(w, permanent(err), "a duplicate key can go away: %v", err)
		require.Zero(w, w.number("SELECT n FROM hits WHERE id = 1"))
		w.exec("DELETE FROM hits WHERE id = 2")
		require.NoError(w, h.Handle(w.Context(), delayqtest.NextRun(j)))
		require.Equal(w, 1, w.number("SELECT n FROM hits WHERE id = 1"))
	})
}

func TestPermanentErrors(t *testing.T) {
	each(t, func(w *world) {
		w.exec(count, begin, "CREATE TABLE small (s VARCHAR(3), i INT)")
		h := w.handler(map[string][]string{
			"table": {"DELETE FROM no_such_table"}, "column": {"UPDATE hits SET no_such_column = 1"}, "syntax": {"DELETE DELETE"},
			"value": {"UPDATE hits SET n = :v WHERE id = 1"}, "long": {"INSERT INTO small (s) VALUES (:v)"}, "function": {"SELECT no_such_function(1)"},
		})
		for name, arguments := range map[string]string{"table": "", "column": "", "syntax": "", "function": "", "value": `"v": "abc"`, "long": `"v": "abcd"`} {
			if w.dialect == outbox.SQLite && arguments != "" {
				continue // its columns take any value
			}
			err := h.Handle(w.Context(), job(t, fmt.Sprintf(`{"statement": %q, "arguments": {%s}}`, name, arguments)))
			require.True(w, permanent(err), "%s: %v", name, err)
		}
		w.exec("DROP TABLE delayq_outbox_inbox")
		err := h.Handle(w.Context(), job(t, `{"statement": "value", "arguments": {"v": 1}}`))
		require.ErrorIs(w, err, outbox.ErrSchema)
		require.False(w, permanent(err), "a migration may be on its way")
		other, err := outbox.New(w.dialect, outbox.Table("mine"))
		require.NoError(w, err)
		require.NoError(w, other.Migrate(w.Context(), w.db))
		h = w.handler(map[string][]string{"hit": {hit}}, statement.Table("mine"))
		require.NoError(w, h.Handle(w.Context(), job(t, `{"statement": "hit", "arguments": {"id": 1}}`)))
		require.Equal(w, 1, w.number("SELECT COUNT(*) FROM mine_inbox"))
	})
}

func TestPayloadsThatDoNotFit(t *testing.T) {
	each(t, func(w *world) {
		w.exec(count, begin)
		h := w.handler(map[string][]string{"hit": {hit}, "none": {"DELETE FROM hits"}})
		for payload, want := range map[string]string{
			"":                       "ends too early",
			`{"statement": `:         "ends too early",
			`{"statement": hidden}`:  "byte 15: not JSON",
			`["hidden"]`:             "the payload is of the type array",
			`{"statement": 7654321}`: "statement is of the type number",
			`{"statement": "hit", "arguments": "hidden"}`:     "arguments is of the type string",
			`{"statement": "hit", "arguments": {"id": 1}} {}`: "more than one value",
			`{"statement": "hit", "sql": "hidden"}`:           `unknown field "sql"`,
			`{"statement": "DROP"}`:                           `there is no statement "DROP"; expected one of ["hit" "none"]`,
			`{}`:                                              `there is no statement ""`,
			`null`:                                            `there is no statement ""`,
			`{"statement": "hit"}`:                            `arguments []; expected exactly ["id"]`,
			`{"statement": "none", "arguments": {"id": "hidden"}}`:                `arguments ["id"]; expected exactly []`,
			`{"statement": "hit", "arguments": {"id": 1, "x": 7654321}}`:          `arguments ["id" "x"]; expected exactly ["id"]`,
			`{"statement": "hit", "arguments": {"id": ["hidden"]}}`:               `argument "id": an array; expected a string`,
			`{"statement": "hit", "arguments": {"id": {"a": "hidden"}}}`:          `argument "id": an object; expected a string`,
			`{"statement": "hit", "arguments": {"id": 9223372036854775808}}`:      `argument "id": a whole number of more than 64 bits`,
			`{"statement": "hit", "arguments": {"id": 76543217654321765432100}}`:  `more than 64 bits`,
			`{"statement": "hit", "arguments": {"id": 1}, "arguments": "hidden"}`: "arguments is of the type string",
		} {
			err := h.Handle(w.Context(), job(t, payload))
			require.True(w, permanent(err), payload)
			require.ErrorContains(w, err, want, payload)
			require.NotContains(w, err.Error(), "hidden")
			require.NotContains(w, err.Error(), "7654321")
		}
		require.NoError(w, h.Handle(w.Context(), job(t, `{"statement": "none"}`)))
		require.Zero(w, w.number("SELECT COUNT(*) FROM hits"))
	})
}

// A statement that fails twice with a serialisation failure is repeated at once. What it counts is
// not part of the transaction.
func TestSerialisationFailures(t *testing.T) {
	each(t, func(w *world) {
		w.exec(count, begin)
		var call string
		var reset string
		switch w.dialect {
		case outbox.Postgres:
			w.exec("CREATE SEQUENCE tries", `CREATE FUNCTION flaky(fails int) RETURNS void LANGUAGE plpgsql AS
				$$ BEGIN IF nextval('tries') <= fails THEN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END IF; END $$`)
			call = "SELECT flaky(:fails)"
			reset = "ALTER SEQUENCE tries RESTART"
		case outbox.MySQL:
			w.exec("CREATE TABLE tries (n INT) ENGINE=MyISAM", "INSERT INTO tries VALUES (0)", `CREATE PROCEDURE flaky(fails INT) BEGIN
				UPDATE tries SET n = n + 1; IF (SELECT n FROM tries) <= fails THEN SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213; END IF; END`)
			call = "CALL flaky(:fails)"
			reset = "UPDATE tries SET n = 0"
		default:
			w.Skip("see TestBusySQLite")
		}
		h := w.handler(map[string][]string{"flaky": {hit, call}})
		for n, fine := range map[int]bool{0: true, 1: true, 4: true, 5: false} {
			w.exec(reset)
			before := w.number("SELECT n FROM hits WHERE id = 1")
			err := h.Handle(w.Context(), job(t, fmt.Sprintf(`{"statement": "flaky", "arguments": {"id": 1, "fails": %d}}`, n)))
			after := w.number("SELECT n FROM hits WHERE id = 1")
			if fine {
				require.NoError(w, err)
				require.Equal(w, before+1, after)
				continue
			}
			require.Error(w, err)
			require.False(w, permanent(err))
			require.Equal(w, before, after)
		}
	})
}

func TestBusySQLite(t *testing.T) {
	each(t, func(w *world) {
		if w.dialect != outbox.SQLite {
			w.Skip("see TestSerialisationFailures")
		}
		w.exec(count, begin)
		h, err := statement.New(w.open(strings.Replace(w.dsn, "10000", "0", 1)), w.dialect, map[string][]string{"hit": {hit}})
		require.NoError(w, err)
		j := job(t, `{"statement": "hit", "arguments": {"id": 1}}`)
		tx, err := w.db.Begin()
		require.NoError(w, err)
		_, err = tx.Exec("UPDATE hits SET n = 5 WHERE id = 2")
		require.NoError(w, err)
		err = h.Handle(w.Context(), j)
		require.ErrorContains(w, err, "locked")
		require.False(w, permanent(err))
		require.NoError(w, tx.Rollback())
		require.NoError(w, h.Handle(w.Context(), j))
	})
}

// Jobs that lock the same rows in opposite orders deadlock. Each has its effect once.
func TestDeadlocks(t *testing.T) {
	each(t, func(w *world) {
		w.exec(count, begin)
		if w.dialect == outbox.Postgres {
			w.exec("ALTER SYSTEM SET deadlock_timeout = '5ms'", "SELECT pg_reload_conf()")
		}
		second := "UPDATE hits SET n = n + 1 WHERE id = :second"
		h := w.handler(map[string][]string{"both": {hit, second}})
		const workers, jobs = 4, 25
		var all sync.WaitGroup
		for n := range workers {
			all.Go(func() {
				for range jobs {
					j := job(w, fmt.Sprintf(`{"statement": "both", "arguments": {"id": %d, "second": %d}}`, n%2+1, 2-n%2))
					for {
						err := h.Handle(w.Context(), j)
						if err == nil {
							break
						}
						if permanent(err) {
							w.Error(err)
							return
						}
						j = delayqtest.NextRun(j)
					}
				}
			})
		}
		all.Wait()
		require.Equal(w, 2*workers*jobs, w.number("SELECT SUM(n) FROM hits"))
	})
}

func TestIsolation(t *testing.T) {
	each(t, func(w *world) {
		if w.dialect != outbox.Postgres {
			w.Skip("what a level is called differs")
		}
		w.exec("CREATE TABLE seen (level text)")
		h := w.handler(map[string][]string{"look": {"INSERT INTO seen SELECT current_setting('transaction_isolation')"}}, statement.Isolation(sql.LevelSerializable))
		require.NoError(w, h.Handle(w.Context(), job(t, `{"statement": "look"}`)))
		require.Equal(w, 1, w.number("SELECT COUNT(*) FROM seen WHERE level = 'serializable'"))
	})
}

func TestInvalidConfigurations(t *testing.T) {
	db, err := sql.Open("sqlite", "file::memory:")
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	for _, c := range []struct {
		dialect    outbox.Dialect
		statements map[string][]string
		opts       []statement.Option
		want       []string
	}{
		{outbox.SQLite, nil, nil, []string{"no statements"}},
		{outbox.SQLite, map[string][]string{"a": nil, "b": {"DELETE FROM t", "COMMIT", "SELECT ?"}}, nil,
			[]string{`"a" has no statement`, `statement 2 of "b": begins with COMMIT`, `statement 3 of "b": has a placeholder at byte 8`}},
		{7, map[string][]string{"a": {"x"}}, nil, []string{"Dialect(7)"}},
		{outbox.SQLite, map[string][]string{"a": {"x"}}, []statement.Option{nil, statement.Table("no table")}, []string{"nil option", "no table"}},
	} {
		_, err := statement.New(db, c.dialect, c.statements, c.opts...)
		require.ErrorIs(t, err, delayq.ErrInvalid)
		for _, want := range c.want {
			require.ErrorContains(t, err, want)
		}
	}
	_, err = statement.New(nil, outbox.SQLite, map[string][]string{"a": {"x"}})
	require.ErrorContains(t, err, "nil database")
	require.ErrorIs(t, err, delayq.ErrInvalid)
	require.False(t, errors.Is(err, outbox.ErrSchema))
}
