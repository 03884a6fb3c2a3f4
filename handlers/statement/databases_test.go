package statement_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/handlers/statement"
	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
)

// A database is a server that the tests have started, or a file.
type database struct {
	dialect outbox.Dialect
	driver  string
	start   func() (dsn string, stop func(), err error)

	once sync.Once
	dsn  string
	stop func()
	err  error
	made int
}

var databases = []*database{
	{dialect: outbox.SQLite, driver: "sqlite", start: func() (string, func(), error) {
		dir, err := os.MkdirTemp("", "statement-sqlite")
		return "file:" + filepath.Join(dir, "%s") + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)", func() { _ = os.RemoveAll(dir) }, err
	}},
	{dialect: outbox.Postgres, driver: "pgx", start: sqltest.Postgres},
	{dialect: outbox.MySQL, driver: "mysql", start: func() (string, func(), error) {
		_ = mysql.SetLogger(quiet{})
		return sqltest.MariaDB()
	}},
}

// quiet keeps the driver from logging each refused connection while the server starts.
type quiet struct{}

func (quiet) Print(...any) {}

func TestMain(m *testing.M) {
	if config := os.Getenv(killedEnv); config != "" {
		var k killed
		err := json.Unmarshal([]byte(config), &k)
		if err == nil {
			err = k.run()
		}
		fmt.Fprintln(os.Stderr, "not killed:", err)
		os.Exit(1)
	}
	code := m.Run()
	for _, d := range databases {
		if d.stop != nil {
			d.stop()
		}
	}
	os.Exit(code)
}

// A world is a new, empty database.
type world struct {
	*testing.T
	*database
	db  *sql.DB
	dsn string
}

// each runs a test on every database. Without its server a test is skipped, or fails under CI.
func each(t *testing.T, test func(w *world)) {
	for _, d := range databases {
		t.Run(d.dialect.String(), func(t *testing.T) {
			d.once.Do(func() { d.dsn, d.stop, d.err = d.start() })
			if errors.Is(d.err, sqltest.ErrMissing) && os.Getenv("CI") == "" {
				t.Skipf("%v: %v", d.dialect, d.err)
			}
			require.NoError(t, d.err)
			d.made++
			name := fmt.Sprintf("test%d", d.made)
			if d.dialect != outbox.SQLite {
				admin, err := sql.Open(d.driver, fmt.Sprintf(d.dsn, map[outbox.Dialect]string{outbox.Postgres: "postgres", outbox.MySQL: "mysql"}[d.dialect]))
				require.NoError(t, err)
				defer admin.Close()
				_, err = admin.Exec("CREATE DATABASE " + name)
				require.NoError(t, err)
			}
			w := &world{T: t, database: d, dsn: strings.Replace(d.dsn, "%s", name, 1)}
			w.db = w.open(w.dsn)
			ob, err := outbox.New(d.dialect)
			require.NoError(t, err)
			require.NoError(t, ob.Migrate(t.Context(), w.db))
			test(w)
		})
	}
}

func (w *world) open(dsn string) *sql.DB {
	w.Helper()
	db, err := sql.Open(w.driver, dsn)
	require.NoError(w, err)
	w.Cleanup(func() { _ = db.Close() })
	return db
}

func (w *world) exec(statements ...string) {
	w.Helper()
	for _, text := range statements {
		_, err := w.db.ExecContext(w.Context(), text)
		require.NoError(w, err, text)
	}
}

// number returns the result of a query, which is one whole number.
func (w *world) number(query string) (n int) {
	w.Helper()
	require.NoError(w, w.db.QueryRowContext(w.Context(), query).Scan(&n), query)
	return n
}

func (w *world) handler(statements map[string][]string, opts ...statement.Option) *statement.Handler {
	w.Helper()
	h, err := statement.New(w.db, w.dialect, statements, opts...)
	require.NoError(w, err)
	return h
}

func job(t testing.TB, payload string) *delayq.Job {
	t.Helper()
	return delayqtest.NewJob(t, delayq.NewJob{Topic: "sql", ID: "task", Payload: []byte(payload)})
}

// permanent reports whether err is a Permanent: its type is not exported.
func permanent(err error) bool { return fmt.Sprintf("%T", err) == "*delayq.permanentError" }
