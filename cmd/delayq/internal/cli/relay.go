package cli

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/delayq/delayq/cmd/delayq/internal/database"
	"github.com/delayq/delayq/outbox"
	"github.com/delayq/delayq/prom"
)

// A relayFlags holds the flags of the command relay.
type relayFlags struct {
	dsn      string
	file     string
	dialect  string
	table    string
	shards   int
	horizon  time.Duration
	keep     time.Duration
	since    string
	migrate  bool
	schema   bool
	metrics  string
	check    bool
	oldest   time.Duration
	name     string
	drop     bool
	deadRows int
	deadAge  time.Duration
	dead     bool
	revive   string
	discard  string
}

// envDSN holds the address of the database of an outbox, which can have a password in it.
const envDSN = envPrefix + "DSN"

func (a *app) relayCommand() *cobra.Command {
	f := relayFlags{table: "delayq_outbox", shards: 1, oldest: time.Minute, deadRows: 1_000_000, deadAge: 90 * 24 * time.Hour}
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "Send the rows of an outbox from a database to Redis",
		Long: `Send the committed rows of an outbox from PostgreSQL, MySQL, MariaDB or SQLite to
Redis. Run as many relays as you like: one at a time holds a shard. docs/outbox.md is
about it.

The address of the database comes from --dsn-file, or from DELAYQ_DSN in the
environment. --dsn is for addresses without a password. It is one of

  postgres://user@host:5432/database
  mysql://user@tcp(host:3306)/database    mariadb://… is the same
  sqlite://path/to/file                   with the write-ahead log, for 10 s of waiting

With --dialect it is what the driver (pgx, go-sql-driver/mysql or modernc.org/sqlite)
takes. The address is never shown.

--schema prints the statements that create the tables, and ends. --migrate executes them
first. All relays of a table need the same --shards, --horizon and --keep.

--check looks for what keeps rows from being sent, and ends: missing tables, with the
statements that create them, another version, shards without a relay, a row that has
waited for longer than --oldest, and rows that Redis has refused. It does not use Redis.
The exit code is 1 if something was found.

--since asks for the rows that were sent at that time or later, and that Redis does not
remember, to be sent again. They must have been kept (--keep). Use it once, when Redis
has lost data.

--metrics serves the state of the outbox and of the queue to Prometheus, as
delayq exporter does: the rows that wait, the age of the oldest one, dead rows. It needs
the rights of the role inspector too. /livez answers 503 if the relay should be started
anew, and /readyz if it cannot use the database or Redis. --name tells outboxes apart
whose tables have the same name in several databases.

--dead lists the rows that Redis has refused, and ends. --revive writes one of them once
more, by its key, or all of them, and --discard deletes it. With --drop-duplicates a
second row of an ID whose job has not finished is deleted and not refused. Of dead rows
over --dead-rows, or older than --dead-age by the clock of the database, those with the
lowest keys are deleted. They are the oldest ones, unless keys have started again.

SIGINT and SIGTERM end the batch in progress, and the relay with exit code 0.`,
		Example: `  delayqd relay --schema --dialect postgres
  delayqd relay --migrate --dsn sqlite:///var/lib/shop/shop.db
  DELAYQ_DSN=postgres://shop:password@db/shop delayqd relay --horizon 24h --keep 6h
  delayqd relay --dsn-file /run/secrets/dsn --keep 6h --since 2h
  delayqd relay --dsn-file /run/secrets/dsn --check --oldest 10s
  delayqd relay --dsn-file /run/secrets/dsn --revive all`,
		Args:              counted(0, 0, "no arguments"),
		ValidArgsFunction: a.completeArgs(nothing),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !a.tabular() {
				return usage("-o %s: relay has no output but its log", a.format)
			}
			return a.relay(cmd.Context(), &f)
		},
	}
	s := cmd.Flags()
	s.StringVar(&f.dsn, "dsn", "", "`address` of the database, without a password")
	s.StringVar(&f.file, "dsn-file", "", "read the address of the database from this `file`")
	s.StringVar(&f.dialect, "dialect", "", "postgres, mysql, mariadb or sqlite; without it the address begins with its name")
	s.StringVar(&f.table, "table", f.table, "`name` of the outbox; its other tables have longer names")
	s.IntVar(&f.shards, "shards", f.shards, "into how many parts rows are divided, from 1 to 64; as in the programs that write rows")
	s.Var(&duration{&f.horizon}, "horizon", "leave jobs in the database until they are due within this time; 0s: send all")
	s.Var(&duration{&f.keep}, "keep", "keep sent rows for this time, from 1m to 6d; 0s: keep none")
	s.StringVar(&f.since, "since", "", "first ask for rows since this `time` to be sent again: an instant, or 2h for two hours ago")
	s.BoolVar(&f.migrate, "migrate", false, "create the tables that do not exist")
	s.BoolVar(&f.schema, "schema", false, "print the statements that create the tables, and do nothing else")
	s.StringVar(&f.metrics, "metrics", "", "serve metrics to Prometheus on this `address`; port 0 is a free one")
	s.BoolVar(&f.check, "check", false, "look for what keeps rows from being sent, and do nothing else")
	s.Var(&duration{&f.oldest}, "oldest", "how long a row may wait, for --check")
	s.StringVar(&f.name, "name", "", "the outbox's `name` in the metrics; without it that of the table")
	s.BoolVar(&f.drop, "drop-duplicates", false, "delete rows whose ID an unfinished job has; without it they are dead rows")
	s.IntVar(&f.deadRows, "dead-rows", f.deadRows, "how many dead rows are kept, from 0 to 10000000")
	s.Var(&duration{&f.deadAge}, "dead-age", "for how long dead rows are kept, at least 1m")
	s.BoolVar(&f.dead, "dead", false, "list the rows that Redis has refused, and do nothing else")
	s.StringVar(&f.revive, "revive", "", "write a dead row once more, by its `key`, or all, and do nothing else")
	s.StringVar(&f.discard, "discard", "", "delete a dead row by its `key`, or all, and do nothing else")
	a.choices(cmd, "dialect", []string{"postgres", "mysql", "mariadb", "sqlite"})
	return cmd
}

// relay sends rows until it is asked to end.
func (a *app) relay(ctx context.Context, f *relayFlags) (failed error) {
	dialect, dsn, err := f.database(a.getenv)
	if err != nil {
		return err
	}
	box, err := outbox.New(dialect, outbox.Table(f.table), outbox.Shards(f.shards))
	if err != nil {
		return usage("%v", err)
	}
	if f.schema {
		_, err := fmt.Fprint(a.stdout(), box.Schema())
		return err
	}
	if f.check {
		return a.checkOutbox(ctx, box, dialect, dsn, f.oldest)
	}
	if f.dead || f.revive != "" || f.discard != "" {
		return a.deadRows(ctx, box, dialect, dsn, f)
	}
	log := slog.New(slog.NewTextHandler(a.err, nil))
	opts := []outbox.RelayOption{outbox.Logger(log), outbox.DeadLimit(f.deadRows, f.deadAge)}
	if f.horizon != 0 {
		opts = append(opts, outbox.Horizon(f.horizon))
	}
	if f.keep != 0 {
		opts = append(opts, outbox.Keep(f.keep))
	}
	if f.drop {
		opts = append(opts, outbox.DropDuplicates())
	}
	if f.since != "" && f.keep == 0 {
		return usage("--since needs --keep: only kept rows can be sent again")
	}
	db, err := openDatabase(dialect, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // nothing is left to write
	client, err := a.queue()
	if err != nil {
		return err
	}
	relay := box.Relay(db, client, opts...)
	over, cancel := context.WithCancel(ctx)
	cancel()
	if err := relay.Run(over); err != nil { // the options, before the database is asked
		return usage("%v", err)
	}

	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	if f.metrics != "" {
		metrics, err := a.relayMetrics(box, relay, db, f, dsn, log)
		if err != nil {
			return err
		}
		defer func() { failed = errors.Join(failed, metrics.end()) }()
		a.say("metrics of table %s and of prefix %q on %s", f.table, a.prefix, metrics.url())
	}
	if err := a.prepare(ctx, box, db, f); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return ofDatabase(err, dsn)
	}
	a.say("relay of table %s (%s) to prefix %q", f.table, dialect, a.prefix)
	return ofDatabase(relay.Run(ctx), dsn)
}

// relayMetrics serves the state of the outbox and of the queue.
func (a *app) relayMetrics(box *outbox.Outbox, relay *outbox.Relay, db *sql.DB, f *relayFlags, dsn string, log *slog.Logger) (*metricsServer, error) {
	insp, err := a.inspector()
	if err != nil {
		return nil, err
	}
	rows := prom.NewOutboxCollector(cmp.Or(f.name, f.table), func(ctx context.Context) (prom.OutboxStats, error) {
		s, err := box.Stats(ctx, db)
		return prom.OutboxStats(s), ofDatabase(err, dsn)
	}, prom.Logger(log))
	reg := prometheus.NewRegistry()
	reg.MustRegister(rows, prom.NewCollector(insp, prom.Logger(log)), prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "delayq_outbox_deleted_rows_total", Help: "Dead rows over the limit that this relay has deleted.",
		ConstLabels: prometheus.Labels{"outbox": cmp.Or(f.name, f.table)},
	}, func() float64 { return float64(relay.State().Deleted) }))
	return serveMetrics(f.metrics, reg, log, map[string]func() error{
		"/livez": relay.Live, "/readyz": func() error { return ofDatabase(relay.Ready(), dsn) },
	})
}

// checkOutbox shows what keeps rows from being sent.
func (a *app) checkOutbox(ctx context.Context, box *outbox.Outbox, dialect outbox.Dialect, dsn string, oldest time.Duration) error {
	if oldest < time.Millisecond {
		return usage("--oldest %v: must be at least 1ms", oldest)
	}
	db, err := openDatabase(dialect, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // nothing was written
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	report, err := box.Check(ctx, db, oldest)
	if report != nil {
		for _, f := range report.Findings {
			if _, err := fmt.Fprintf(a.stdout(), "%s: %s\n", f.Table, f.Text); err != nil {
				return err
			}
			if f.Statement == "" {
				continue
			}
			if _, err := fmt.Fprintf(a.stdout(), "%s\n", f.Statement); err != nil {
				return err
			}
		}
	}
	if err != nil {
		return ofDatabase(err, dsn)
	}
	s := report.Stats
	a.say("rows: %s, oldest: %s, dead: %s, beyond the horizon: %s; %s", number(s.Rows), span(s.Oldest), number(s.Dead), number(s.Later),
		count(len(report.Findings), "finding"))
	if len(report.Findings) > 0 {
		return &exitCode{code: exitError}
	}
	return nil
}

// prepare does what the flags ask for before a relay runs.
func (a *app) prepare(ctx context.Context, box *outbox.Outbox, db *sql.DB, f *relayFlags) error {
	short, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if err := db.PingContext(short); err != nil {
		return err
	}
	if f.migrate {
		if err := box.Migrate(ctx, db); err != nil {
			return err
		}
		a.say("the tables of %s exist", f.table)
	}
	if f.since == "" {
		return nil
	}
	since, err := a.instant(ctx, "since", f.since)
	if err != nil {
		return err
	}
	n, err := box.Resend(ctx, db, since)
	if err != nil {
		return err
	}
	a.say("%d rows were sent since %s; those that Redis does not remember are sent again", n, since.UTC().Format(time.RFC3339))
	return nil
}

// database returns the dialect and what its driver takes.
func (f *relayFlags) database(env func(string) string) (outbox.Dialect, string, error) {
	dsn := env(envDSN)
	switch {
	case f.dsn != "" && f.file != "":
		return 0, "", usage("--dsn and --dsn-file exclude each other")
	case f.file != "":
		text, err := os.ReadFile(f.file)
		if err != nil {
			return 0, "", usage("--dsn-file: %v", err)
		}
		if dsn = strings.TrimSpace(string(text)); dsn == "" {
			return 0, "", usage("--dsn-file: %s is empty", f.file)
		}
	case f.dsn != "":
		if dsn = f.dsn; database.HasPassword(dsn) {
			return 0, "", usage("--dsn has a password, which others can see in the list of processes; use %s or --dsn-file", envDSN)
		}
	}
	if dsn == "" && (!f.schema || f.dialect == "") {
		return 0, "", usage("the address of the database is missing; see --dsn-file, %s and --dialect", envDSN)
	}
	dialect, dsn, err := database.Parse(f.dialect, dsn)
	if err != nil {
		return 0, "", usage("%v; see --dsn-file, %s and --dialect", err, envDSN)
	}
	return dialect, dsn, nil
}

// openDatabase opens a database. It does not connect.
func openDatabase(dialect outbox.Dialect, dsn string) (*sql.DB, error) {
	db, err := database.Open(dialect, dsn)
	if err != nil {
		return nil, usage("%v: see delayqd relay --help", err)
	}
	return db, nil
}

// ofDatabase returns the error of a database without its address.
func ofDatabase(err error, dsn string) error {
	if err == nil {
		return nil
	}
	var exit *exitCode
	if errors.As(err, &exit) {
		return err
	}
	return &exitCode{exitError, "database: " + strings.TrimPrefix(database.Clean(err, dsn), "outbox: ")}
}
