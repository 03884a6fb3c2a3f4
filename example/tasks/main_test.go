package main

import (
	"database/sql"
	"io"
	"os"
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
NAME|KIND|RHYTHM|STATUS|LAST RUN|NEXT RUN|OUTCOME|OUTPUT
clean-zombies|sql|every 1s|waiting|TIME|TIME|acked|statement 1: rows affected: 0
disk|command|every 1s|waiting|TIME|TIME|acked|3 GB are free
export|command|every 1s|paused|-|-|-|-
totals|command|every 1s|waiting|TIME|TIME|acked|total 7
ping|webhook|every 1s|waiting|TIME|TIME|acked|200 OK pong
report|mail|once|done|TIME|-|acked|ID 2.0.0 OK: queued
copy|command|once|dead|TIME|-|buried|command: sh: exit status 3; its output ends with: no space is left
the partner got a mail for ann@customer.example
`

func TestTasks(t *testing.T) {
	want := printed
	if !hasPython() {
		want = withoutPython(want)
	}
	program := build(t, ".")
	require.Equal(t, want, output(t, program, os.Environ()))

	// A machine without Python has all the others.
	bin := t.TempDir()
	require.NoError(t, os.Symlink("/bin/sh", filepath.Join(bin, "sh")))
	require.Equal(t, withoutPython(printed), output(t, program, append(os.Environ(), "PATH="+bin)))
}

func withoutPython(text string) string {
	text = regexp.MustCompile(`(?m)^totals.*\n`).ReplaceAllString(text, "")
	return "python3 does not run here: its task is left out\n" + strings.Replace(text, "7 moved", "6 moved", 1)
}

// build builds the program of a folder.
func build(t *testing.T, dir string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	text, err := exec.CommandContext(t.Context(), "go", "build", "-C", dir, "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", text)
	return program
}

// output returns what the example prints, without what differs from run to run.
func output(t *testing.T, program string, env []string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = env
	text, err := cmd.Output()
	require.NoError(t, err, string(text))
	got := string(text)
	for _, r := range [][2]string{{`\d\d:\d\d:\d\d\.\d`, "TIME"}, {`<[0-9a-f]{32}@shop.example>`, "ID"}, {`(\S)  +`, "$1|"}} {
		got = regexp.MustCompile(r[0]).ReplaceAllString(got, r[1])
	}
	return got
}

// old returns a database of the old system.
func old(t *testing.T, path, ping string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_txlock=immediate")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, err = db.Exec(table)
	require.NoError(t, err)
	fill(db, ping)
	return db
}

// The move is stopped when a row has been handed over and before it is marked, and is begun again.
func TestMoveIsInterrupted(t *testing.T) {
	const ping = "http://partner.example/ping"
	db := old(t, filepath.Join(t.TempDir(), "tasks"), ping)
	q := delayqtest.Start(t)
	c := config{statements: statements, commands: commands, receivers: map[string]string{"ping": ping}}
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
