package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// What may be executed is the same in the file of the worker as in the program.
func TestFileIsThatOfTheProgram(t *testing.T) {
	text, err := os.ReadFile("worker.yaml")
	require.NoError(t, err)
	var file struct {
		Topics struct {
			SQL struct {
				SQL struct{ Statements map[string]string }
			}
			Command struct {
				Command struct {
					Commands map[string]struct{ Argv []string }
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &file))
	require.Equal(t, statements, file.Topics.SQL.SQL.Statements)
	got := make(map[string][]string)
	for name, c := range file.Topics.Command.Command.Commands {
		got[name] = c.Argv
	}
	require.Equal(t, commands, got)
}

// "delayqd worker" runs the moved tasks with worker.yaml, and "delayq task list" has them.
func TestCommandServesWhatWasMoved(t *testing.T) {
	rdb, prefix := redistest.Shared(t), redistest.Prefix(t)
	client, insp := delayq.NewClient(rdb, delayq.Prefix(prefix)), delayq.NewInspector(rdb, delayq.Prefix(prefix))
	partner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "pong") }))
	defer partner.Close()
	mails := newMailbox()
	defer func() { require.NoError(t, mails.Close()) }()
	dir, ping := t.TempDir(), partner.URL+"/ping"
	db := old(t, filepath.Join(dir, "tasks"), ping)
	want := map[string][]string{ // task, state, outcome, the end of the output
		"clean-zombies": {"sql clean-zombies", "waiting", "acked", "rows affected: 0"},
		"disk":          {"command disk", "waiting", "acked", "3 GB are free"},
		"totals":        {"command totals", "waiting", "acked", "total 7"},
		"export":        {"command export", "paused", "", ""},
		"ping":          {"webhook ping", "waiting", "acked", "pong"},
	}
	text, err := os.ReadFile("worker.yaml")
	require.NoError(t, err)
	if !hasPython() {
		delete(want, "totals")
		leaveOut(db, "python")
		text = regexp.MustCompile(`(?m)^ *totals: .*\n`).ReplaceAll(text, nil)
	}
	c := config{statements: statements, commands: commands, receivers: map[string]string{"ping": ping}}
	require.NoError(t, c.move(t.Context(), db, client, io.Discard))

	_, port, err := net.SplitHostPort(mails.listener.Addr().String())
	require.NoError(t, err)
	require.Contains(t, string(text), "port: 2525")
	file := filepath.Join(dir, "worker.yaml")
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), "port: 2525", "port: "+port, 1)), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "report.txt"), report, 0o600))
	program := build(t, "../../cmd/delayq/delayqd")
	call := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = append(os.Environ(), "DELAYQ_REDIS=redis://"+rdb.Options().Addr, "DELAYQ_PREFIX="+prefix,
			"SHOP_DSN=sqlite://"+filepath.Join(dir, "tasks"), "PING_URL="+ping, "PING_SECRET="+pingSecret)
		return cmd
	}
	worker := call("worker", "--config", file)
	errs, err := worker.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, worker.Start())
	logged := make(chan string, 1)
	go func() {
		var all strings.Builder
		for lines := bufio.NewScanner(errs); lines.Scan(); {
			all.WriteString(lines.Text() + "\n")
		}
		logged <- all.String()
	}()

	require.Equal(t, "ann@customer.example", queuetest.Receive(t, mails.got))
	queuetest.Until(t, func() bool { // each task has run, and those in a loop twice
		for name, w := range want {
			topic, _, _ := strings.Cut(w[0], " ")
			s, err := insp.Schedule(t.Context(), topic, name)
			if err != nil || s.State != delayq.SchedulePaused && s.Attempts < 2 {
				return false
			}
		}
		for _, one := range single {
			job, err := client.Get(t.Context(), one.topic, one.name)
			if err != nil || job.State != delayq.StateDone && job.State != delayq.StateDead {
				return false
			}
		}
		return true
	})
	require.NoError(t, worker.Process.Signal(syscall.SIGTERM))
	log := queuetest.Receive(t, logged)
	require.NoError(t, worker.Wait(), log)

	out, err := call("task", "list", "-o", "json").Output()
	require.NoError(t, err)
	var list struct {
		Tasks []struct {
			Name, Task, State string
			LastRun           struct {
				Outcome, Output string
			} `json:"last_run"`
		}
	}
	require.NoError(t, json.Unmarshal(out, &list))
	require.Len(t, list.Tasks, len(want), "%s", out)
	for _, r := range list.Tasks {
		w := want[r.Name]
		require.Equal(t, w[:3], []string{r.Task, r.State, r.LastRun.Outcome}, "%s", out)
		require.True(t, strings.HasSuffix(strings.TrimSpace(r.LastRun.Output), w[3]), "%s", out)
	}
	out, err = call("job", "command", "copy").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "no space is left")
}
