// Package sqltest starts the database servers of the project's own tests. They are processes that
// listen on 127.0.0.1 on free ports and write to their own directories.
package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrMissing is wrapped by the error for a server that is not installed.
var ErrMissing = errors.New("not installed")

// Hasty makes servers that are started from then on not wait for the disk. What they have committed
// survives them, but not the machine.
var Hasty bool

// hasty returns settings that make a server hasty.
func hasty(settings ...string) []string {
	if Hasty {
		return settings
	}
	return nil
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
	dir, err := os.MkdirTemp("", "delayq-"+account)
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
	return "", fmt.Errorf("%v: %w", names, ErrMissing)
}

// Postgres starts a PostgreSQL server. The dsn has a %s for the name of a database, and the
// superuser postgres needs no password. The test imports the driver pgx.
func Postgres() (dsn string, stop func(), err error) {
	p, err := initPostgres()
	if err != nil {
		return "", nil, err
	}
	stop, err = p.s.run("pgx", fmt.Sprintf(p.DSN, "postgres"), p.command())
	return p.DSN, stop, err
}

// PostgresReplica starts a replica of a server that Postgres has started. It follows by streaming,
// and its clock is behind by a span (0: it is not). Promote makes it a server of its own, without
// what it has not received.
func PostgresReplica(dsn string, behind time.Duration) (replica string, stop func(), err error) {
	postgres, err := program("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return "", nil, err
	}
	s, err := newService("postgres")
	if err != nil {
		return "", nil, err
	}
	host, port, err := net.SplitHostPort(Host(dsn))
	if err != nil {
		return "", nil, err
	}
	data := filepath.Join(s.dir, "data")
	backup := s.command(filepath.Join(filepath.Dir(postgres), "pg_basebackup"), append(hasty("--no-sync"), "-h", host, "-p", port, "-U", "postgres", "-D", data, "-R", "-X", "stream", "-c", "fast")...)
	if text, err := backup.CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("pg_basebackup: %w\n%s", err, text)
	}
	cmd := s.command(postgres, append(hasty("-c", "fsync=off"), "-D", data, "-p", strconv.Itoa(s.port), "-k", s.dir, "-h", "127.0.0.1")...)
	if behind > 0 {
		library, err := program("/usr/lib/*/faketime/libfaketime.so.1")
		if err != nil {
			return "", nil, err
		}
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+library, "FAKETIME=-"+strconv.Itoa(int(behind/time.Second))+"s", "FAKETIME_DONT_FAKE_MONOTONIC=1")
	}
	replica = "postgres://postgres@127.0.0.1:" + strconv.Itoa(s.port) + "/%s?sslmode=disable"
	stop, err = s.run("pgx", fmt.Sprintf(replica, "postgres"), cmd)
	return replica, stop, err
}

// Cut lets a replica receive nothing more.
func Cut(ctx context.Context, replica *sql.DB) error {
	for _, statement := range []string{"ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"} {
		if _, err := replica.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	for {
		receives := false
		if err := replica.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM pg_stat_wal_receiver)").Scan(&receives); err != nil || !receives {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Promote makes a replica a server of its own.
func Promote(ctx context.Context, replica *sql.DB) error {
	_, err := replica.ExecContext(ctx, "SELECT pg_promote()")
	return err
}

// PgBouncer starts a PgBouncer in transaction mode in front of a server that Postgres has started.
// So that clients share connections, it has two for each database. dsn is that of the server, with
// the %s, and so is the returned one.
func PgBouncer(dsn string) (through string, stop func(), err error) {
	pgbouncer, err := program("pgbouncer", "/usr/sbin/pgbouncer")
	if err != nil {
		return "", nil, err
	}
	server, err := url.Parse(strings.Replace(dsn, "%s", "", 1))
	if err != nil {
		return "", nil, err
	}
	s, err := newService("postgres")
	if err != nil {
		return "", nil, err
	}
	config := fmt.Sprintf("[databases]\n* = host=%s port=%s user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\nauth_type = any\n"+
		"pool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 200\n", server.Hostname(), server.Port(), s.port)
	file := filepath.Join(s.dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return "", nil, err
	}
	through = strings.Replace(dsn, server.Host, "127.0.0.1:"+strconv.Itoa(s.port), 1)
	stop, err = s.run("pgx", fmt.Sprintf(through, "postgres")+"&default_query_exec_mode=exec", s.command(pgbouncer, file))
	return through, stop, err
}

// MariaDB starts a MariaDB server. The dsn has a %s for the name of a database, and root needs no
// password. The test imports the driver mysql.
func MariaDB() (dsn string, stop func(), err error) {
	mariadbd, err := program("mariadbd", "/usr/sbin/mariadbd")
	if err != nil {
		return "", nil, err
	}
	s, err := newService("mysql")
	if err != nil {
		return "", nil, err
	}
	data := filepath.Join(s.dir, "data")
	install := s.command("mariadb-install-db", "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db")
	if text, err := install.CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("mariadb-install-db: %w\n%s", err, text)
	}
	dsn = "root@tcp(127.0.0.1:" + strconv.Itoa(s.port) + ")/%s"
	stop, err = s.run("mysql", fmt.Sprintf(dsn, "mysql"), s.command(mariadbd, slices.Concat([]string{"--no-defaults", "--datadir=" + data, "--port=" + strconv.Itoa(s.port),
		"--socket=" + filepath.Join(s.dir, "s"), "--bind-address=127.0.0.1", "--pid-file=" + filepath.Join(s.dir, "pid"), "--skip-name-resolve"},
		hasty("--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync"))...))
	return dsn, stop, err
}

// Host returns the host and port in the address of a server that this package has started.
func Host(dsn string) string {
	_, rest, _ := strings.Cut(dsn, "@")
	rest = strings.TrimPrefix(rest, "tcp(")
	return rest[:strings.IndexAny(rest, ")/")]
}
