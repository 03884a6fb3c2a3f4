package outbox_test

import (
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
)

// A database is a server that the tests have started, or a file.
type database struct {
	dialect outbox.Dialect
	name    string
	start   func() (dsn string, stop func(), err error)

	once sync.Once
	dsn  string
	stop func()
	err  error
	made int
	mu   sync.Mutex
}

var databases = []*database{
	{dialect: outbox.SQLite, name: "sqlite", start: func() (string, func(), error) {
		dir, err := os.MkdirTemp("", "outbox-sqlite")
		return dir, func() { _ = os.RemoveAll(dir) }, err
	}},
	{dialect: outbox.Postgres, name: "postgres", start: sqltest.Postgres},
	{dialect: outbox.MySQL, name: "mariadb", start: startMariaDB},
}

func TestMain(m *testing.M) {
	flag.Parse()
	sqltest.Hasty = flag.Lookup("test.bench").Value.String() == "" // benchmarks measure the disk too
	// A test on a database waits most of the time.
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == "2" {
		_ = parallel.Value.Set("3")
	}
	for _, d := range databases {
		outbox.Servers[d.dialect] = func() (string, error) {
			d.started()
			return d.dsn, d.err
		}
	}
	code := m.Run()
	for _, d := range databases {
		if d.stop != nil {
			d.stop()
		}
	}
	os.Exit(code)
}

// each runs a test on every database, side by side: they end after the function that calls it.
// Without its server a test is skipped, or fails under CI.
func each(t *testing.T, test func(t *testing.T, d *database)) {
	for _, d := range databases {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			d.started()
			if errors.Is(d.err, sqltest.ErrMissing) && os.Getenv("CI") == "" {
				t.Skipf("%s: %v", d.name, d.err)
			}
			require.NoError(t, d.err)
			test(t, d)
		})
	}
}

// started starts the server, if that has not been done.
func (d *database) started() *database {
	d.once.Do(func() { d.dsn, d.stop, d.err = d.start() })
	return d
}

// fresh returns how to open a new, empty database.
func (d *database) fresh(t testing.TB) (driver, dsn string) {
	d.mu.Lock()
	d.made++
	name := "test" + strconv.Itoa(d.made)
	d.mu.Unlock()
	if d.dialect == outbox.SQLite {
		return "sqlite", "file:" + filepath.Join(d.dsn, name) + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)"
	}
	driver = map[outbox.Dialect]string{outbox.Postgres: "pgx", outbox.MySQL: "mysql"}[d.dialect]
	admin, err := sql.Open(driver, fmt.Sprintf(d.dsn, map[string]string{"pgx": "postgres", "mysql": "mysql"}[driver]))
	require.NoError(t, err)
	defer admin.Close()
	_, err = admin.Exec("CREATE DATABASE " + name)
	require.NoError(t, err)
	return driver, fmt.Sprintf(d.dsn, name)
}

// open returns a new database with an outbox in it.
func (d *database) open(t testing.TB, opts ...outbox.Option) (*sql.DB, *outbox.Outbox) {
	driver, dsn := d.fresh(t)
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	ob, err := outbox.New(d.dialect, opts...)
	require.NoError(t, err)
	require.NoError(t, ob.Migrate(t.Context(), db))
	return db, ob
}

// quiet keeps the driver from logging each refused connection while the server starts.
type quiet struct{}

func (quiet) Print(...any) {}

func startMariaDB() (string, func(), error) {
	_ = mysql.SetLogger(quiet{})
	return sqltest.MariaDB()
}
