//go:build unix

package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A shell is one that completes words in a terminal.
type shell struct {
	name  string
	start func(dir string) *exec.Cmd // it reads the files below, which are in dir
	files map[string]string
}

// shells load the completion, and then say ready-42.
var shells = []shell{
	{"bash", func(dir string) *exec.Cmd {
		return exec.Command("bash", "--noprofile", "--rcfile", filepath.Join(dir, "rc"), "-i")
	}, map[string]string{"rc": "source /usr/share/bash-completion/bash_completion\nsource <(delayq completion bash)\necho ready-$((40+2))\n"}},
	{"zsh", func(dir string) *exec.Cmd {
		cmd := exec.Command("zsh", "-i")
		cmd.Env = []string{"ZDOTDIR=" + dir}
		return cmd
	}, map[string]string{".zshrc": "unsetopt GLOBAL_RCS\nautoload -Uz compinit && compinit -u -D\nsource <(delayq completion zsh)\necho ready-$((40+2))\n"}},
	{"fish", func(dir string) *exec.Cmd {
		return exec.Command("fish", "--no-config", "-i", "-C", "source "+filepath.Join(dir, "rc"))
	}, map[string]string{"rc": "delayq completion fish | source\necho ready-(math 40+2)\n"}},
}

// open starts the shell for the command line in a terminal, or skips the test.
func (s *shell) open(t *testing.T, cli *tool) *session {
	t.Helper()
	_, err := exec.LookPath(s.name)
	if s.name == "bash" && err == nil {
		_, err = os.Stat("/usr/share/bash-completion/bash_completion")
	}
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("CI needs %s with its completion: %v", s.name, err)
		}
		t.Skipf("%s with its completion is not installed", s.name)
	}
	dir := t.TempDir()
	for name, text := range s.files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	cmd := s.start(dir)
	cmd.Dir = dir
	cmd.Env = append(append(cmd.Env, cli.env...), "HOME="+dir)
	session := inTerminal(t, cmd)
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // what it was to do is done
		_ = cmd.Wait()
	})
	session.until("ready-42")
	return session
}

// TAB completes topics and IDs in each shell, and executes nothing that is in their names.
func TestCompletionExecutesNothing(t *testing.T) {
	t.Parallel()
	for _, shell := range shells {
		t.Run(shell.name, func(t *testing.T) {
			t.Parallel()
			cli, client := onRealRedis(t)
			dir := t.TempDir()
			pwned := filepath.Join(dir, "pwned")
			require.NoError(t, os.WriteFile(filepath.Join(dir, "pwn"), []byte("#!/bin/sh\ntouch "+pwned+"\n"), 0o700))
			require.NoError(t, os.Symlink(os.Args[0], filepath.Join(dir, "delayq")))
			cli.env = append(cli.env, "PATH="+dir+":"+os.Getenv("PATH"))
			evil := []string{"`pwn`", "$(pwn)", "';pwn;'", "\";pwn;\"", ";pwn;", "(pwn)", "|pwn|", "&pwn&", "`pwn>&2`", "\\`pwn\\`"}
			store := func(topic, id string) {
				_, err := client.Enqueue(t.Context(), topic, id, nil, delayq.ProcessIn(time.Hour))
				require.NoError(t, err)
			}
			for i, text := range evil {
				for n := range 2 { // what several words have in common is inserted as it is
					store(fmt.Sprint("evil-", i), fmt.Sprint(text, n))
					store("mixed", fmt.Sprint("u-77", text, i, n))
					store(fmt.Sprint("zz", i, text, n), "j")
				}
			}
			for i := range 3 {
				store("mixed", fmt.Sprint("order-", i))
			}
			s := shell.open(t, cli)
			typed := []string{"delayq explain mixed u-7", "delayq explain mixed ", "delayq topic zz", "delayq topic ", "delayq cancel mixed or"}
			for i := range evil {
				typed = append(typed, fmt.Sprintf("delayq explain evil-%d ", i), fmt.Sprint("delayq topic zz", i))
			}
			answer := "echo done-$((%d+0))\r"
			if shell.name == "fish" {
				answer = "echo done-(math %d+0)\r"
			}
			n := 100
			press := func(line string) {
				n++
				_, err := fmt.Fprintf(s.keys, "%s\t\t\t\x15"+answer, line, n)
				require.NoError(t, err)
				s.until(fmt.Sprintf("done-%d", n))
				require.NoFileExists(t, pwned, line)
			}
			for _, line := range typed {
				press(line)
			}
			// Something was offered. On a busy machine, completion can give up at the first time.
			for line, want := range map[string]string{"delayq cancel mixed or": "order-2", "delayq explain mixed ": "base64:"} {
				queuetest.Until(t, func() bool {
					if !strings.Contains(s.text(), want) {
						press(line)
					}
					return strings.Contains(s.text(), want)
				})
			}
		})
	}
}
