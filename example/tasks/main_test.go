package main

import (
	"database/sql"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

const printed = `task 9: refused: "drop-all": its content is not that of the configuration
7 moved, 1 refused
0 moved, 0 refused
sql clean-zombies: every 1s, waiting, next run in N ms, last run acked: statement 1: rows affected: 0
command disk: every 1s, waiting, next run in N ms, last run acked: 3 GB are free
command export: every 1s, paused
command totals: every 1s, waiting, next run in N ms, last run acked: total 7
webhook ping: every 1s, waiting, next run in N ms, last run acked: 200 OK pong
mail report: once, done: <N@shop.example> N.N.N OK: queued
command copy: once, dead: command: sh: exit status 3; its output ends with: no space is left
the partner got a mail for ann@customer.example
`

func TestTasks(t *testing.T) {
	want := printed
	if _, err := exec.LookPath("python3"); err != nil {
		want = strings.NewReplacer(
			"task 9", "task 3: refused: \"totals\": its content is not that of the configuration\ntask 9", "7 moved, 1", "6 moved, 2",
			"command totals: every 1s, waiting, next run in N ms, last run acked: total 7\n", "",
		).Replace(want)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", ".")
	text, err := cmd.Output()
	require.NoError(t, err, string(text))
	got := regexp.MustCompile(`-?\d+ ms`).ReplaceAllString(string(text), "N ms")
	got = regexp.MustCompile(`<[0-9a-f]{32}@`).ReplaceAllString(got, "<N@")
	require.Equal(t, want, strings.ReplaceAll(got, "> 2.0.0 OK", "> N.N.N OK"))
}

// The move is stopped when a row has been handed over and before it is marked, and is begun again.
func TestMoveIsInterrupted(t *testing.T) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "tasks")+"?_pragma=busy_timeout(10000)&_txlock=immediate")
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	_, err = db.Exec(table)
	require.NoError(t, err)
	fill(db, "http://partner.example/ping")
	q := delayqtest.Start(t)
	c := config{ping: "http://partner.example/ping", statements: statements, commands: commands}
	for id := range 10 {
		_, err := db.Exec("CREATE TRIGGER stop BEFORE UPDATE ON tasks WHEN NEW.id = " + strconv.Itoa(id) +
			" BEGIN SELECT RAISE(ABORT, 'the database is gone'); END")
		require.NoError(t, err)
		err = c.move(t.Context(), db, q.Client, io.Discard)
		if id == 0 || id == 8 { // there is no row 0, and row 8 is done
			require.NoError(t, err)
		}
		_, err = db.Exec("DROP TRIGGER stop")
		require.NoError(t, err)
		_, err = db.Exec("UPDATE tasks SET status = 'pending' WHERE id <> 8") // as after an old backup
		require.NoError(t, err)
	}
	require.NoError(t, c.move(t.Context(), db, q.Client, io.Discard))
	count := 0
	for _, topic := range topics {
		list, err := q.Inspector.Schedules(t.Context(), topic)
		require.NoError(t, err)
		count += len(list)
		for _, s := range list {
			require.Equal(t, s.Name == "export", s.State == delayq.SchedulePaused, s.Name)
		}
	}
	require.Equal(t, 5, count)
	for topic, id := range map[string]string{"mail": "report", "command": "copy"} {
		stats, err := q.Inspector.Stats(t.Context(), topic)
		require.NoError(t, err)
		require.EqualValues(t, 1, stats[0].Scheduled+stats[0].Ready)
		_, err = q.Client.Get(t.Context(), topic, id)
		require.NoError(t, err)
	}
}
