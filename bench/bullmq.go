package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// leftOut is the error of a side that cannot be measured on this machine.
type leftOut struct {
	side, why string
	always    bool // also in CI, where what is missing is a failure
}

// Error implements error.
func (e *leftOut) Error() string { return e.side + " is left out: " + e.why }

// bullmqFiles are the program of a child and the versions of what it needs.
//
//go:embed bullmq/package.json bullmq/package-lock.json bullmq/.npmrc bullmq/peer.mjs
var bullmqFiles embed.FS

// oldestNode is the major version of Node that BullMQ's packages need.
const oldestNode = 20

// Bounds of what the children do.
const (
	installPatience = 2 * time.Minute // npm ci
	requestPatience = 5 * time.Minute // one request
	endPatience     = 10 * time.Second
)

// nodeHome is a directory with the program of a child and all that it needs.
type nodeHome struct {
	dir string
	err error // a *leftOut, if BullMQ cannot be measured here
}

// openNode installs BullMQ into a temporary directory, in the versions of the
// lock file. Where Node or npm is missing, the error is a *leftOut.
func openNode(ctx context.Context) (dir string, err error) {
	missing := func(format string, args ...any) error {
		return &leftOut{side: bullmqLabel, why: fmt.Sprintf(format, args...)}
	}
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", missing("%s is not installed", program)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, installPatience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "node", "--version").Output()
	if err != nil {
		return "", fmt.Errorf("node --version: %w", err)
	}
	version := strings.TrimSpace(string(out))
	if n, err := nodeMajor(version); err != nil {
		return "", err
	} else if n < oldestNode {
		why := fmt.Sprintf("it needs Node %d, and this is %s", oldestNode, version)
		return "", &leftOut{side: bullmqLabel, why: why, always: true} // Debian 12 has an older one
	}
	if dir, err = os.MkdirTemp("", "bench-bullmq-"); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if err := unpackBullMQ(dir); err != nil {
		return "", err
	}
	npm := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline")
	npm.Dir, npm.WaitDelay = dir, endPatience
	if text, err := npm.CombinedOutput(); err != nil {
		return "", missing("npm ci: %v: %s", err, strings.Join(strings.Fields(string(text)), " "))
	}
	return dir, nil
}

// nodeMajor is the major version in the text of node --version, like v20.1.0.
func nodeMajor(version string) (int, error) {
	major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		return 0, fmt.Errorf("node --version: %q is no version", version)
	}
	return n, nil
}

// unpackBullMQ writes the files of a child into dir.
func unpackBullMQ(dir string) error {
	files, err := bullmqFiles.ReadDir("bullmq")
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := bullmqFiles.ReadFile("bullmq/" + file.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file.Name()), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// bullmqVersion is the version in package.json.
func bullmqVersion() (string, error) {
	text, err := bullmqFiles.ReadFile("bullmq/package.json")
	if err != nil {
		return "", err
	}
	var of struct{ Dependencies map[string]string }
	err = json.Unmarshal(text, &of)
	return of.Dependencies["bullmq"], err
}

// nodeDir is the directory of BullMQ, which the first side that needs it
// installs.
func (b *bench) nodeDir(ctx context.Context) (string, error) {
	if b.node == nil {
		dir, err := openNode(ctx)
		if missing := (*leftOut)(nil); err != nil && !errors.As(err, &missing) {
			return "", fmt.Errorf("install BullMQ: %w", err)
		}
		b.node = &nodeHome{dir, err}
	}
	return b.node.dir, b.node.err
}

// bullmqChild is BullMQ in a child process: see bullmq/peer.mjs. It is used for
// one sample and then closed.
type bullmqChild struct {
	store *store
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *json.Decoder
}

// startChild starts the program in dir. The child ends with its stdin, so also
// with this process, and it is killed when ctx is done.
func startChild(ctx context.Context, dir string) (*bullmqChild, error) {
	c := &bullmqChild{cmd: exec.CommandContext(ctx, "node", filepath.Join(dir, "peer.mjs"))}
	c.cmd.Stderr = os.Stderr
	c.cmd.WaitDelay = endPatience
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = json.NewDecoder(stdout)
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start node: %w", err)
	}
	return c, nil
}

// request is what a child is asked to do. Times are in ms; those in fractions
// are since 1970.
type request struct {
	Do     string `json:"do"`
	Within int64  `json:"within"`

	Topic   string `json:"topic,omitempty"`
	Callers int    `json:"callers,omitempty"` // 0: in bulk
	N       int    `json:"n"`
	Size    int    `json:"size,omitempty"` // of a payload, in bytes

	Delay int64   `json:"delay,omitempty"` // from now to the due time
	At    float64 `json:"at,omitempty"`    // the due time
	Span  int64   `json:"span,omitempty"`  // after at
	IDs   bool    `json:"ids,omitempty"`   // see storedID

	Topics      []string `json:"topics,omitempty"` // of workers
	Workers     int      `json:"workers,omitempty"`
	Concurrency int      `json:"concurrency,omitempty"`
	Takes       float64  `json:"takes,omitempty"` // of a handler
	Limiter     *limiter `json:"limiter,omitempty"`
	Slots       bool     `json:"slots,omitempty"` // jobs are those of schedules

	Rate  int   `json:"rate,omitempty"`  // of a load, in jobs a second
	Every int64 `json:"every,omitempty"` // of a schedule
	From  int   `json:"from,omitempty"`  // of a page
	Times int   `json:"times,omitempty"`
	Steps int   `json:"steps,omitempty"` // of a flow

	Connect *connect `json:"connect,omitempty"`
}

// limiter is BullMQ's rate.
type limiter struct {
	Max      int   `json:"max"`
	Duration int64 `json:"duration"` // ms
}

// connect is how a child reaches Redis.
type connect struct {
	Host     string `json:"host,omitempty"`
	Port     int    `json:"port,omitempty"`
	Path     string `json:"path,omitempty"`
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
	DB       int    `json:"db"`
}

// reply is what a child answers. Times are in ms; those in fractions are since
// 1970, unless they are lengths.
type reply struct {
	Error   string    `json:"error"`
	Node    string    `json:"node"`
	Doubled int       `json:"doubled"`
	Strange int       `json:"strange"`
	Others  int       `json:"others"`
	Last    float64   `json:"last"`
	Late    []float64 `json:"late"`
	Starts  []float64 `json:"starts"`
	Sent    int       `json:"sent"`
	Waits   []float64 `json:"waits"`
}

// do has the child do something.
func (c *bullmqChild) do(r request) (reply, error) {
	var got reply
	r.Within = requestPatience.Milliseconds()
	if r.Topic == "" {
		r.Topic = topic
	}
	if err := json.NewEncoder(c.stdin).Encode(r); err != nil {
		return got, fmt.Errorf("bullmq: ask to %s: %w", r.Do, err)
	}
	if err := c.out.Decode(&got); err != nil {
		return got, fmt.Errorf("bullmq: no answer to %s: %w", r.Do, err)
	}
	if got.Error != "" {
		return got, fmt.Errorf("bullmq: %s", got.Error)
	}
	return got, nil
}

// each does several things one after the other.
func (c *bullmqChild) each(requests ...request) error {
	for _, r := range requests {
		if _, err := c.do(r); err != nil {
			return err
		}
	}
	return nil
}

// open connects the child to Redis.
func (c *bullmqChild) open(s *store) error {
	c.store = s
	if s.opt.TLSConfig != nil {
		return &leftOut{side: bullmqLabel, why: "it is not set up for TLS"}
	}
	to := &connect{Username: s.opt.Username, Password: s.opt.Password, DB: s.opt.DB}
	if s.opt.Network == "unix" {
		to.Path = s.opt.Addr
	} else {
		host, port, err := net.SplitHostPort(s.opt.Addr)
		if err != nil {
			return err
		}
		to.Host = host
		if to.Port, err = strconv.Atoi(port); err != nil {
			return err
		}
	}
	_, err := c.do(request{Do: "open", Connect: to})
	return err
}

// close ends the child.
func (c *bullmqChild) close() error {
	timer := time.AfterFunc(endPatience, func() { _ = c.cmd.Process.Kill() })
	defer timer.Stop()
	if err := errors.Join(c.stdin.Close(), c.cmd.Wait()); err != nil {
		return fmt.Errorf("bullmq: %w", err)
	}
	return nil
}

// left is the number of unfinished jobs of a topic.
func (c *bullmqChild) left(ctx context.Context, topic string) (int, error) {
	key := func(part string) string { return "bull:" + topic + ":" + part }
	pipe := c.store.admin.Pipeline()
	counts := []interface{ Val() int64 }{
		pipe.LLen(ctx, key("wait")), pipe.LLen(ctx, key("active")), pipe.LLen(ctx, key("paused")),
		pipe.ZCard(ctx, key("delayed")), pipe.ZCard(ctx, key("prioritized")),
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, fmt.Errorf("count the jobs of queue %q: %w", topic, err)
	}
	sum := 0
	for _, n := range counts {
		sum += int(n.Val())
	}
	return sum, nil
}

// bullmqLabel is BullMQ in the table.
const bullmqLabel = "bullmq"

// bullmqSide measures BullMQ on an empty Redis, and leaves it empty. A ratio is
// that of the first side of the row by it.
func bullmqSide(measure func(context.Context, *bench, *bullmqChild) (sample, error)) side {
	return side{label: bullmqLabel, beside: true, measure: func(ctx context.Context, b *bench) (_ sample, err error) {
		dir, err := b.nodeDir(ctx)
		if err != nil {
			return nil, err
		}
		if err := b.store.flush(ctx); err != nil {
			return nil, err
		}
		c, err := startChild(ctx, dir)
		if err != nil {
			return nil, err
		}
		defer func() {
			err = errors.Join(err, c.close(), b.store.flush(context.WithoutCancel(ctx)))
		}()
		if err := c.open(b.store); err != nil {
			return nil, err
		}
		result, err := measure(ctx, b, c)
		// The connections are the child's, and so are its allocations.
		for _, figure := range []string{figCommands, figBytes, figAllocs} {
			delete(result, figure)
		}
		return result, err
	}}
}

// instant is t as a child has it.
func instant(t time.Time) float64 { return float64(t.UnixMicro()) / 1000 }

// instantOf is the time that a child tells.
func instantOf(ms float64) time.Time { return time.UnixMicro(int64(ms * 1000)) }

// spansOf are the lengths of time that a child tells, the shortest first.
func spansOf(ms []float64) []time.Duration {
	spans := make([]time.Duration, len(ms))
	for i, v := range ms {
		spans[i] = time.Duration(v * float64(time.Millisecond))
	}
	slices.Sort(spans)
	return spans
}
