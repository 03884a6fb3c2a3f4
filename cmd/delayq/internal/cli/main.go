// Package cli is the command line of delayq. The programs delayq and delayqd are made of it, and
// package part says what only delayqd has.
//
// One file holds one group of commands, such as jobs.go or schedules.go. The files below hold what
// all groups use:
//
//   - root.go: the commands and the flags that all of them have
//   - connect.go: the connection to Redis
//   - output.go, table.go: tables, JSON and IDs on stdout
//   - records.go: jobs and topics in JSON
//   - times.go: times and durations, in both directions
//   - filters.go, ask.go: which jobs are meant, and whether they really are
//   - calls.go: many calls side by side
//   - exit.go: exit codes
//   - complete.go: completion with names from Redis
package cli

import (
	"context"
	"os"
	"os/signal"
	"os/user"

	"github.com/redis/go-redis/v9/logging"
	"golang.org/x/term"
)

// Main is a program with this name. It does not return.
func Main(name string) {
	logging.Disable() // every error of Redis is returned, and is reported once
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second interrupt ends the process
	os.Exit(run(ctx, system(name)))
}

// A process is what a command has from the operating system. Tests have one of their own.
type process struct {
	name   string // of the program
	args   []string
	in     *input
	out    *output
	err    *output
	getenv func(name string) string
	user   string // the default of --actor
	dial   dialer
}

// system returns the process that this is.
func system(name string) *process {
	p := &process{
		name:   name,
		args:   os.Args[1:],
		in:     &input{Reader: os.Stdin, terminal: term.IsTerminal(int(os.Stdin.Fd()))},
		out:    newOutput(os.Stdout),
		err:    newOutput(os.Stderr),
		getenv: os.Getenv,
		user:   os.Getenv("USER"),
		dial:   dial,
	}
	if u, err := user.Current(); p.user == "" && err == nil {
		p.user = u.Username
	}
	return p
}

// newOutput returns an output to a file, which may be a terminal.
func newOutput(f *os.File) *output {
	o := &output{Writer: f, terminal: term.IsTerminal(int(f.Fd()))}
	if width, _, err := term.GetSize(int(f.Fd())); err == nil {
		o.width = width
	}
	return o
}

// run carries out one command line and returns the exit code.
func run(ctx context.Context, p *process) int {
	a := &app{process: p}
	defer a.close()
	cmd, err := a.root().ExecuteContextC(ctx)
	if cmd.Name() == checkName {
		err = asNagios(err)
	}
	if flushed := a.flush(); err == nil {
		err = flushed
	}
	return a.report(ctx, a.ended(err))
}
