package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

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

var errMissing = errors.New("not installed")

var databases = []*database{
	{dialect: outbox.SQLite, name: "sqlite", start: func() (string, func(), error) {
		dir, err := os.MkdirTemp("", "outbox-sqlite")
		return dir, func() { _ = os.RemoveAll(dir) }, err
	}},
	{dialect: outbox.Postgres, name: "postgres", start: startPostgres},
	{dialect: outbox.MySQL, name: "mariadb", start: startMariaDB},
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, d := range databases {
		if d.stop != nil {
			d.stop()
		}
	}
	os.Exit(code)
}

// each runs a test on every database. Without its server a test is skipped, or fails under CI.
func each(t *testing.T, test func(t *testing.T, d *database)) {
	for _, d := range databases {
		t.Run(d.name, func(t *testing.T) {
			d.once.Do(func() { d.dsn, d.stop, d.err = d.start() })
			if errors.Is(d.err, errMissing) && os.Getenv("CI") == "" {
				t.Skipf("%s: %v", d.name, d.err)
			}
			require.NoError(t, d.err)
			test(t, d)
		})
	}
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

// servant returns the account of a server that refuses to run as root; nil: the own one will do.
func servant(name string) (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// A service starts a database server in a folder of its own.
type service struct {
	dir  string
	as   *syscall.Credential
	port int
}

func newService(account string) (*service, error) {
	as, err := servant(account)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "outbox-"+account)
	if err != nil {
		return nil, err
	}
	if as != nil {
		if err := os.Chown(dir, int(as.Uid), int(as.Gid)); err != nil {
			return nil, err
		}
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer free.Close()
	return &service{dir: dir, as: as, port: free.Addr().(*net.TCPAddr).Port}, nil
}

func (s *service) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "HOME="+s.dir, "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as}
	return cmd
}

// run starts the server and waits until it answers.
func (s *service) run(driver, dsn string, cmd *exec.Cmd) (func(), error) {
	log, err := os.Create(filepath.Join(s.dir, "server.log"))
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop := func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		if driver == "mysql" {
			_ = cmd.Process.Kill()
		}
		<-ended
		_ = log.Close()
		_ = os.RemoveAll(s.dir)
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		stop()
		return nil, err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		err := db.PingContext(ctx)
		if err == nil {
			return stop, nil
		}
		select {
		case why := <-ended:
			text, _ := os.ReadFile(log.Name())
			return nil, fmt.Errorf("%s ended: %v\n%s", cmd.Path, why, text)
		case <-ctx.Done():
			stop()
			return nil, err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// program returns the path of the first program that exists.
func program(names ...string) (string, error) {
	for _, name := range names {
		if found, _ := filepath.Glob(name); len(found) > 0 {
			return found[len(found)-1], nil
		}
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%v: %w", names, errMissing)
}

func startPostgres() (string, func(), error) {
	postgres, err := program("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return "", nil, err
	}
	s, err := newService("postgres")
	if err != nil {
		return "", nil, err
	}
	data := filepath.Join(s.dir, "data")
	initdb := s.command(filepath.Join(filepath.Dir(postgres), "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale")
	if text, err := initdb.CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("initdb: %w\n%s", err, text)
	}
	dsn := "postgres://postgres@127.0.0.1:" + strconv.Itoa(s.port) + "/%s?sslmode=disable"
	stop, err := s.run("pgx", fmt.Sprintf(dsn, "postgres"), s.command(postgres, "-D", data, "-p", strconv.Itoa(s.port), "-k", s.dir, "-h", "127.0.0.1"))
	return dsn, stop, err
}

func startMariaDB() (string, func(), error) {
	mariadbd, err := program("mariadbd", "/usr/sbin/mariadbd")
	if err != nil {
		return "", nil, err
	}
	s, err := newService("mysql")
	if err != nil {
		return "", nil, err
	}
	_ = mysql.SetLogger(quiet{})
	data := filepath.Join(s.dir, "data")
	install := s.command("mariadb-install-db", "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db")
	if text, err := install.CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("mariadb-install-db: %w\n%s", err, text)
	}
	dsn := "root@tcp(127.0.0.1:" + strconv.Itoa(s.port) + ")/%s"
	stop, err := s.run("mysql", fmt.Sprintf(dsn, "mysql"), s.command(mariadbd, "--no-defaults", "--datadir="+data, "--port="+strconv.Itoa(s.port),
		"--socket="+filepath.Join(s.dir, "s"), "--bind-address=127.0.0.1", "--pid-file="+filepath.Join(s.dir, "pid"), "--skip-name-resolve"))
	return dsn, stop, err
}

// quiet keeps the driver from logging each refused connection while the server starts.
type quiet struct{}

func (quiet) Print(...any) {}
