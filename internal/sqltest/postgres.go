package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A PostgresServer is one that can be killed, stopped and started again.
type PostgresServer struct {
	DSN string // with a %s for the name of a database

	s       *service
	program string
	running *exec.Cmd
	ended   chan struct{} // closed when running has ended
}

// initPostgres makes the files of a server.
func initPostgres() (*PostgresServer, error) {
	postgres, err := program("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return nil, err
	}
	s, err := newService("postgres")
	if err != nil {
		return nil, err
	}
	p := &PostgresServer{DSN: "postgres://postgres@127.0.0.1:" + strconv.Itoa(s.port) + "/%s?sslmode=disable", s: s, program: postgres}
	initdb := s.command(filepath.Join(filepath.Dir(postgres), "initdb"), append(hasty("--no-sync"), "-D", p.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale")...)
	if text, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, text)
	}
	return p, nil
}

func (p *PostgresServer) data() string { return filepath.Join(p.s.dir, "data") }

func (p *PostgresServer) command() *exec.Cmd {
	return p.s.command(p.program, append(hasty("-c", "fsync=off"), "-D", p.data(), "-p", strconv.Itoa(p.s.port), "-k", p.s.dir, "-h", "127.0.0.1")...)
}

// StartPostgres starts a server as [Postgres] does.
func StartPostgres() (*PostgresServer, error) {
	p, err := initPostgres()
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Start starts a server that has ended, and waits until it answers.
func (p *PostgresServer) Start() error {
	log, err := os.OpenFile(filepath.Join(p.s.dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd, ended := p.command(), make(chan struct{})
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	p.running, p.ended = cmd, ended
	db, err := sql.Open("pgx", fmt.Sprintf(p.DSN, "postgres"))
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for db.PingContext(ctx) != nil {
		select {
		case <-ended:
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("%s ended\n%s", p.program, text[max(0, len(text)-2000):])
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w", p.program, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// processes returns the processes of the server. Each of them has a session of its own.
func (p *PostgresServer) processes() (list []int, err error) {
	own := p.running.Process.Pid
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	list = []int{own}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil { // it has ended
			continue
		}
		_, rest, _ := strings.Cut(string(text), ") ") // after the name
		fields := strings.Fields(rest)
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && len(fields) > 1 && fields[0] != "Z" && fields[1] == strconv.Itoa(own) {
			list = append(list, pid)
		}
	}
	return list, nil
}

func (p *PostgresServer) signal(list []int, signal syscall.Signal) error {
	var errs []error
	for _, pid := range list {
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Stop stops all processes of the server, until Cont.
func (p *PostgresServer) Stop() error {
	if err := p.running.Process.Signal(syscall.SIGSTOP); err != nil { // so that it starts no more of them
		return err
	}
	list, err := p.processes()
	return errors.Join(err, p.signal(list, syscall.SIGSTOP))
}

// Cont lets a server go on that was stopped.
func (p *PostgresServer) Cont() error {
	list, err := p.processes()
	return errors.Join(err, p.signal(list, syscall.SIGCONT))
}

// Kill ends all processes of the server at once, and waits until they are gone.
func (p *PostgresServer) Kill() error {
	if err := p.running.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	list, err := p.processes()
	if err := errors.Join(err, p.signal(list, syscall.SIGKILL)); err != nil {
		return err
	}
	<-p.ended
	for _, pid := range list { // it does not start while one of them has its memory
		for range 1000 {
			if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err != nil || strings.Contains(string(text), ") Z ") {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// End ends the server as an operator does. Its clients are cut off.
func (p *PostgresServer) End() error {
	err := p.running.Process.Signal(syscall.SIGINT)
	if err == nil {
		<-p.ended
	}
	return err
}

// Close ends the server and removes its files.
func (p *PostgresServer) Close() error {
	var err error
	if p.running != nil {
		select {
		case <-p.ended:
		default:
			err = p.Kill()
		}
	}
	return errors.Join(err, os.RemoveAll(p.s.dir))
}
