package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // sqltest and relays use pgx by database/sql

	"github.com/delayq/delayq/internal/sqltest"
)

// postgres is a PostgreSQL server of our own, with its defaults.
type postgres struct {
	dsn   string // with a %s for the name of a database
	admin *pgx.Conn
	pid   int // of its first process, the parent of all others
	made  int
	// version is its own, such as 15.14.
	version string
	stop    func()
}

// openPostgres starts a server. Where none is installed, the error wraps
// sqltest.ErrMissing.
func openPostgres(ctx context.Context) (_ *postgres, err error) {
	db := &postgres{}
	if db.dsn, db.stop, err = sqltest.Postgres(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			db.stop()
		}
	}()
	if db.admin, err = pgx.Connect(ctx, fmt.Sprintf(db.dsn, "postgres")); err != nil {
		return nil, err
	}
	var fsync, dir string
	row := db.admin.QueryRow(ctx, "SELECT current_setting('fsync'), current_setting('data_directory'), split_part(current_setting('server_version'), ' ', 1)")
	if err := row.Scan(&fsync, &dir, &db.version); err != nil {
		return nil, err
	}
	if fsync != "on" {
		return nil, fmt.Errorf("fsync is %s: a database that can lose what it has committed is not what users have", fsync)
	}
	text, err := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	db.pid, err = strconv.Atoi(first)
	return db, err
}

// close ends the server and removes its directory.
func (db *postgres) close(ctx context.Context) error {
	err := db.admin.Close(ctx)
	db.stop()
	return err
}

// fresh connects to a new, empty database, with enough connections for all
// callers and servers. The function it returns drops the database.
func (db *postgres) fresh(ctx context.Context) (pool *pgxpool.Pool, drop func(context.Context) error, err error) {
	db.made++
	name := "bench" + strconv.Itoa(db.made)
	if _, err := db.admin.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, nil, err
	}
	drop = func(ctx context.Context) error {
		pool.Close()
		_, err := db.admin.Exec(ctx, "DROP DATABASE "+name)
		return err
	}
	config, err := pgxpool.ParseConfig(fmt.Sprintf(db.dsn, name))
	if err == nil {
		config.MaxConns = 2 * txCallers
		pool, err = pgxpool.NewWithConfig(ctx, config)
	}
	if err != nil {
		return nil, nil, errors.Join(err, drop(ctx))
	}
	return pool, drop, nil
}

// clockTick is the unit of times in /proc/*/stat.
const clockTick = time.Second / 100

// cpu is the CPU time that the server has used so far: its first process with
// its ended children, and those that run. It is not known where there is no
// /proc.
func (db *postgres) cpu() (used time.Duration, known bool) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		pid, parent, own, ended := parseStat(string(text))
		switch db.pid {
		case pid:
			used, known = used+own+ended, true
		case parent:
			used += own
		}
	}
	return used, known
}

// parseStat reads the line of a process: its ID, that of its parent, the CPU
// time that it has used, and that of its ended children.
func parseStat(line string) (pid, parent int, own, ended time.Duration) {
	head, rest, _ := strings.Cut(line, " (")
	fields := strings.Fields(rest[strings.LastIndexByte(rest, ')')+1:]) // a name can have anything in it
	if len(fields) < 15 {
		return 0, 0, 0, 0
	}
	ticks := func(i int) time.Duration {
		n, _ := strconv.ParseInt(fields[i], 10, 64)
		return time.Duration(n) * clockTick
	}
	pid, _ = strconv.Atoi(head)
	parent, _ = strconv.Atoi(fields[1])
	return pid, parent, ticks(11) + ticks(12), ticks(13) + ticks(14)
}
