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
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

	c := config{dir: dir, ping: ping, mail: mails.server(), statements: statements, commands: commands}
	if _, err := exec.LookPath("python3"); err != nil {
		c.commands = map[string][]string{"disk": commands["disk"], "copy": commands["copy"], "export": commands["export"]}
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
	report(q.Client, q.Inspector)
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
		for _, topic := range []string{"mail", "command"} { // the tasks that run once
			stats, err := insp.Stats(ctx, topic)
			check(err)
			waits = waits || stats[0].Done+stats[0].Dead == 0
		}
		if !waits {
			return
		}
	}
}

// report prints what "delayq task list", "delayq job" and the web page show.
func report(client *delayq.Client, insp *delayq.Inspector) {
	ctx := context.Background()
	for _, topic := range topics {
		list, err := insp.Schedules(ctx, topic)
		check(err)
		for _, s := range list {
			fmt.Printf("%s %s: %v, %s", topic, s.Name, s.Spec, s.State)
			if s.LastRun != nil {
				fmt.Printf(", next run in %d ms, last run %s: %s", time.Until(s.NextSlot).Milliseconds(), s.LastRun.Outcome, oneLine(s.LastRun.Output))
			}
			fmt.Println()
		}
	}
	for _, one := range [][2]string{{"mail", "report"}, {"command", "copy"}} {
		job, err := client.Get(ctx, one[0], one[1])
		check(err)
		text := string(job.Output())
		if n := len(job.Errors); n > 0 {
			text = job.Errors[n-1].Message
		}
		fmt.Printf("%s %s: once, %s: %s\n", one[0], one[1], job.State, oneLine([]byte(text)))
	}
}

func oneLine(text []byte) string { return strings.Join(strings.Fields(string(text)), " ") }

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
