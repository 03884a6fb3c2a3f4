// Tasks moves a home-made table of timed tasks to delayq: SQL, shell, Python, e-mail and HTTP, once
// or in a loop. It imports the rows, runs them with the ready-made handlers, and prints what an
// operator sees. The database is a temporary SQLite, and Redis is embedded.
//
// The how-to "From a table of tasks to delayq" has the steps.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	_ "modernc.org/sqlite"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/outbox"
)

// table is what the old system polled every ten seconds. It executed what stood in content.
const table = `
	CREATE TABLE tasks (
		id INTEGER PRIMARY KEY, name TEXT NOT NULL, type TEXT NOT NULL, content TEXT NOT NULL,
		interval_s INTEGER, -- NULL: once
		next_run INTEGER NOT NULL, status TEXT NOT NULL, paused INTEGER NOT NULL DEFAULT 0
	);
	CREATE TABLE sessions (id INTEGER PRIMARY KEY, seen INTEGER NOT NULL);
	INSERT INTO sessions (seen) VALUES (1), (2), (3), (2000);`

func main() {
	ctx, stop := context.WithCancel(context.Background())
	dir, err := os.MkdirTemp("", "tasks")
	check(err)
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "tasks")+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	check(err)
	box, err := outbox.New(outbox.SQLite)
	check(cmp.Or(err, box.Migrate(ctx, db))) // it has the inbox, which the SQL statements need
	_, err = db.Exec(table)
	check(err)
	partner, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	ping := "http://" + partner.Addr().String() + "/ping"
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "pong") })}
	go func() { _ = web.Serve(partner) }()
	mails := newMailbox()
	fill(db, ping)

	c := config{dir: dir, mail: mails.server(), statements: statements, commands: commands, receivers: map[string]string{"ping": ping}}
	if !hasPython() {
		fmt.Println("python3 does not run here: its task is left out")
		leaveOut(db, "python")
		c.commands = maps.Clone(commands)
		delete(c.commands, "totals")
	}
	q, err := delayqtest.Open() // an embedded Redis
	check(err)
	for range 2 { // to run it again does no harm
		check(c.move(ctx, db, q.Client, os.Stdout))
	}

	server := delayq.NewServer(q.Redis, delayq.Hooks(tasksEnded), delayq.Logger(slog.New(slog.DiscardHandler)))
	check(c.serve(server, db))
	done := make(chan error)
	go func() { done <- server.Run(ctx) }()
	wait(ctx, q.Inspector)
	stop()
	check(<-done)
	check(show(q.Client, q.Inspector, os.Stdout))
	fmt.Println("the partner got a mail for", <-mails.got)
	check(cmp.Or(web.Close(), mails.Close(), q.Close(), db.Close()))
}

// fill writes rows as the old system had them.
func fill(db *sql.DB, ping string) {
	now, loop := time.Now().Unix(), 1
	for _, row := range []struct {
		name, kind, content string
		every               *int
		next                int64
		status              string
		paused              bool
	}{
		{"clean-zombies", "sql", "DELETE FROM sessions WHERE seen < 1000", &loop, now, "done", false},
		{"disk", "shell", "echo 3 GB are free", &loop, now, "running", false}, // since its poller has crashed
		{"totals", "python", "print('total', 3 + 4)", &loop, now, "done", false},
		{"ping", "http", ping, &loop, now, "failed", false},
		{"report", "email", "ann@customer.example", nil, now, "pending", false},
		{"copy", "shell", "echo no space is left >&2; exit 3", nil, now - 3600, "pending", false}, // overdue
		{"export", "shell", "echo exported", &loop, now, "done", true},
		{"greeting", "email", "ben@customer.example", nil, now - 86400, "done", false},
		{"drop-all", "sql", "DROP TABLE sessions", nil, now, "pending", false}, // nobody has looked at it
	} {
		_, err := db.Exec("INSERT INTO tasks (name, type, content, interval_s, next_run, status, paused) VALUES ($1, $2, $3, $4, $5, $6, $7)",
			row.name, row.kind, row.content, row.every, row.next, row.status, row.paused)
		check(err)
	}
}

// ended is a hook that says when a run has ended.
type ended chan struct{}

var tasksEnded = make(ended, 1000)

func (e ended) Ended(delayq.RunEvent) { e <- struct{}{} }

// wait returns when each task that is not paused has run, and those in a loop twice.
func wait(ctx context.Context, insp *delayq.Inspector) {
	for {
		<-tasksEnded
		waits := false
		for _, topic := range topics {
			list, err := insp.Schedules(ctx, topic)
			check(err)
			for _, s := range list {
				waits = waits || s.State != delayq.SchedulePaused && s.Attempts < 2
			}
		}
		for _, one := range single {
			stats, err := insp.Stats(ctx, one.topic)
			check(err)
			waits = waits || stats[0].Done+stats[0].Dead == 0
		}
		if !waits {
			return
		}
	}
}

// show prints what an operator sees, as "delayq task list", "delayq job" and the web page do.
func show(client *delayq.Client, insp *delayq.Inspector, w io.Writer) error {
	ctx := context.Background()
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tKIND\tRHYTHM\tSTATUS\tLAST RUN\tNEXT RUN\tOUTCOME\tOUTPUT")
	row := func(name, task string, rhythm, status any, last, next time.Time, outcome string, output []byte) {
		kind, _, _ := strings.Cut(task, " ")
		fmt.Fprintf(table, "%s\t%s\t%v\t%v\t%s\t%s\t%s\t%s\n", name, kind, rhythm, status, clock(last), clock(next),
			cmp.Or(outcome, "-"), cmp.Or(strings.Join(strings.Fields(string(output)), " "), "-"))
	}
	for _, topic := range topics {
		list, err := insp.Schedules(ctx, topic)
		if err != nil {
			return err
		}
		for _, s := range list {
			last := cmp.Or(s.LastRun, &delayq.RunInfo{}) // nil before the first one
			row(s.Name, s.Headers["task"], s.Spec, s.State, last.FinishedAt, s.NextSlot, string(last.Outcome), last.Output)
		}
	}
	for _, one := range single {
		job, err := client.Get(ctx, one.topic, one.name)
		if err != nil {
			return err
		}
		last, outcome, output := job.FinishedAt, "acked", job.Output()
		if n := len(job.Errors); job.State == delayq.StateDead {
			last, outcome, output = job.BuriedAt, "buried", []byte(job.Errors[n-1].Message)
		}
		row(one.name, job.Headers["task"], "once", job.State, last, time.Time{}, outcome, output)
	}
	return table.Flush()
}

// single are the tasks that run once.
var single = []struct{ topic, name string }{{"mail", "report"}, {"command", "copy"}}

// clock returns the time of day.
func clock(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("15:04:05.0")
}

// hasPython reports whether python3 runs.
func hasPython() bool { return exec.Command("python3", "-c", "").Run() == nil }

// leaveOut removes the rows of a type.
func leaveOut(db *sql.DB, kind string) {
	_, err := db.Exec("DELETE FROM tasks WHERE type = $1", kind)
	check(err)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
