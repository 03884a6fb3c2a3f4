package redistest

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// libraryDirs are the directories of the library, under its root, whose functions call Redis.
var libraryDirs = []string{"", "/internal/commit", "/internal/script"}

// A Call is a request of the library to Redis.
type Call struct {
	// Function is the first exported method of Client or Inspector in the stack, or else the first
	// function of the library. A method of Inspector has that name in front.
	Function string
	Cmd      redis.Cmder
	Turn     uint // increases when the function repeats the request in this test
}

// RoleOf returns the role that makes a call, and the name under which to count it. The library's
// tests set it first.
var RoleOf func(Call) (role, what string)

// A Tally counts the actions of a role.
type Tally struct {
	Calls int
	Did   map[string]int  // by the name under which it is counted
	Tests map[string]bool // their names
}

var (
	tallies     = map[string]*Tally{}
	talliesLock sync.Mutex
)

// Tallies returns the tally of each role. Call it after all tests.
func Tallies() map[string]*Tally { return tallies }

// Count counts an action of a test in a role.
func Count(role, what, test string) {
	talliesLock.Lock()
	defer talliesLock.Unlock()
	tally := tallies[role]
	if tally == nil {
		tally = &Tally{Did: map[string]int{}, Tests: map[string]bool{}}
		tallies[role] = tally
	}
	tally.Calls++
	tally.Did[what]++
	tally.Tests[test] = true
}

// hooked holds the clients whose calls are divided, each with its division.
var hooked sync.Map

// InRoles makes the library's calls on a client calls of the users, until the end of the test. Each
// call goes to a copy of the client that has the user's name. The clients of Server and Cluster
// already do this. It does nothing unless Roles is true, or if a server does not have the users.
func InRoles(t testing.TB, rdb redis.UniversalClient) {
	if !Roles() || RoleOf == nil || !haveUsers(rdb) {
		return
	}
	d := newDivision(t, rdb)
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		// calls of the library to a single node
		cluster.OnNewNode(func(node *redis.Client) { newDivision(t, node) })
	}
	hooked.Store(rdb, d)
	t.Cleanup(func() { hooked.Delete(rdb) })
}

// Close closes a client and the clients of the users that replace it.
func Close(rdb redis.UniversalClient) error {
	if d, ok := hooked.Load(rdb); ok {
		d.(*division).close()
	}
	return rdb.Close()
}

// As returns a copy of rdb that is closed at the end of the test. It connects as a user, if rdb's
// server has the users.
func As(t testing.TB, rdb redis.UniversalClient, role, prefix string, waits bool) redis.UniversalClient {
	t.Helper()
	var name, password string
	if Roles() && haveUsers(rdb) {
		name, password = account(role, prefix, waits)
		for _, addr := range addrs(rdb) {
			if err := grant(addr, prefix); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := like(rdb, name, password)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Account returns the name and the password of a user, and creates the user if necessary. It does
// nothing unless Roles is true.
func Account(t testing.TB, addr, role, prefix string) (name, password string) {
	t.Helper()
	if !Roles() {
		return "", ""
	}
	if err := grant(addr, prefix); err != nil {
		t.Fatal(err)
	}
	return account(role, prefix, false)
}

// addrs returns the addresses to which a client connects.
func addrs(rdb redis.UniversalClient) []string {
	switch c := rdb.(type) {
	case *redis.Client:
		return []string{c.Options().Addr}
	case *redis.ClusterClient:
		return c.Options().Addrs
	}
	return nil
}

// haveUsers reports whether the servers of a client have the users. Servers behind Sentinels have
// them.
func haveUsers(rdb redis.UniversalClient) bool {
	for _, addr := range addrs(rdb) {
		if _, ok := servers.Load(addr); !ok && addr != "FailoverClient" {
			return false
		}
	}
	return true
}

// like returns a copy of rdb, with another name if name is not empty.
func like(rdb redis.UniversalClient, name, password string) redis.UniversalClient {
	switch c := rdb.(type) {
	case *redis.Client:
		o := *c.Options()
		if name != "" {
			o.Username, o.Password = name, password
		}
		none(&o.MaxRetries)
		none(&o.MinRetryBackoff, &o.MaxRetryBackoff, &o.ReadTimeout, &o.WriteTimeout)
		return redis.NewClient(&o)
	case *redis.ClusterClient:
		o := *c.Options()
		if name != "" {
			o.Username, o.Password = name, password
		}
		none(&o.MaxRedirects)
		none(&o.MinRetryBackoff, &o.MaxRetryBackoff, &o.ReadTimeout, &o.WriteTimeout)
		return redis.NewClusterClient(&o)
	}
	return rdb
}

// none replaces zeros by -1, because go-redis reads a zero option as the default.
func none[N int | time.Duration](fields ...*N) {
	for _, f := range fields {
		if *f == 0 {
			*f = -1
		}
	}
}

// A division is a hook that passes the library's calls to clients of the users.
type division struct {
	t   testing.TB
	rdb redis.UniversalClient

	mu      sync.Mutex
	clients map[string]redis.UniversalClient // by the name of the user
	turns   map[string]uint                  // by function and command
	closed  bool
}

func newDivision(t testing.TB, rdb redis.UniversalClient) *division {
	d := &division{t: t, rdb: rdb, clients: map[string]redis.UniversalClient{}, turns: map[string]uint{}}
	rdb.AddHook(d)
	t.Cleanup(d.close)
	return d
}

// close ends the division: calls go to the client itself again.
func (d *division) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, c := range d.clients {
		_ = c.Close()
	}
}

func (d *division) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d *division) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		to, err := d.to(cmd)
		switch {
		case err != nil:
			cmd.SetErr(err)
			return err
		case to != nil:
			return to.Process(ctx, cmd)
		}
		return next(ctx, cmd)
	}
}

func (d *division) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	single := d.ProcessHook(func(context.Context, redis.Cmder) error { return errors.New("a script without a role") })
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if len(cmds) > 1 && !slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return !strings.HasPrefix(c.Name(), "eval") }) {
			var errs []error
			for _, cmd := range cmds { // scripts of several roles
				errs = append(errs, single(ctx, cmd))
			}
			return errors.Join(errs...)
		}
		to, err := d.to(cmds...)
		if err != nil {
			return err
		}
		if to == nil {
			return next(ctx, cmds)
		}
		pipe := to.Pipeline()
		for _, cmd := range cmds {
			if err := pipe.Process(ctx, cmd); err != nil {
				return err
			}
		}
		_, err = pipe.Exec(ctx)
		return err
	}
}

// introductions are the commands with which go-redis itself opens a connection.
var introductions = []string{"hello", "client", "cluster"}

// to returns the client for commands, or nil if the library is not the caller.
func (d *division) to(cmds ...redis.Cmder) (redis.UniversalClient, error) {
	call := Call{Function: function(), Cmd: cmds[0]}
	prefix := prefixOf(call.Cmd)
	if call.Function == "" || prefix == "" && slices.Contains(introductions, call.Cmd.Name()) {
		return nil, nil
	}
	call.Turn = d.turn(call)
	role, what := RoleOf(call)
	if role == "" || prefix == "" {
		err := fmt.Errorf("no role makes the call %q of %s", call.Cmd.Name(), call.Function)
		d.t.Error(err)
		return nil, err
	}
	Count(role, what, d.t.Name())
	return d.as(role, prefix, cmds[len(cmds)-1].Name() == "wait")
}

// turn counts calls. The first number depends on the test, so that a call that alternates between
// roles starts with different roles in different tests.
func (d *division) turn(call Call) uint {
	what := call.Function + " " + call.Cmd.Name()
	if strings.HasPrefix(call.Cmd.Name(), "eval") {
		what += fmt.Sprint(" ", call.Cmd.Args()[1])
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.turns[what] == 0 {
		d.turns[what] = uint(crc32.ChecksumIEEE([]byte(d.t.Name() + call.Function)))
	}
	d.turns[what]++
	return d.turns[what]
}

// as returns the client of a user, or nil after close.
func (d *division) as(role, prefix string, waits bool) (redis.UniversalClient, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, nil
	}
	name, password := account(role, prefix, waits)
	if c := d.clients[name]; c != nil {
		return c, nil
	}
	for _, addr := range addrs(d.rdb) {
		if err := grant(addr, prefix); err != nil {
			return nil, err
		}
	}
	c := like(d.rdb, name, password)
	d.clients[name] = c
	return c, nil
}

// Worker returns the client that a server uses in place of rdb, and the name of its test. It
// returns rdb itself if its calls are not divided.
func Worker(rdb redis.UniversalClient, prefix string) (_ redis.UniversalClient, test string) {
	if d, ok := hooked.Load(rdb); ok {
		c, err := d.(*division).as("worker", prefix, false)
		if c != nil {
			return c, d.(*division).t.Name()
		}
		if err != nil {
			d.(*division).t.Error(err)
		}
	}
	return rdb, ""
}

// exported matches an exported method that calls Redis, and a function literal in it.
var exported = regexp.MustCompile(`^\(\*(Client|Inspector)\)\.([A-Z]\w*)`)

// function returns the value of Call.Function from the stack. It returns "" if the caller is a
// test, even inside a handler.
func function() (name string) {
	var pcs [100]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	method := false
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if isTest(f.File) {
			if strings.Contains(f.Function, ").ProcessHook.") {
				continue // a hook on the way
			}
			break
		}
		dir, under := strings.CutPrefix(path.Dir(f.File), root)
		if !under || !slices.Contains(libraryDirs, dir) || path.Base(f.File) == "launch.go" {
			// it starts goroutines for others
			continue
		}
		_, is, _ := strings.Cut(path.Base(f.Function), ".")
		if m := exported.FindStringSubmatch(is); m != nil {
			name, method = strings.TrimPrefix(m[1]+"."+m[2], "Client."), true
		} else if !method {
			name, _, _ = strings.Cut(is, ".func") // of a function literal in it
		}
	}
	return name
}

// isTest reports whether a file is a test of the library or a helper of such tests.
func isTest(file string) bool {
	dir, under := strings.CutPrefix(path.Dir(file), root)
	if under && slices.Contains(libraryDirs, dir) {
		return strings.HasSuffix(file, "_test.go")
	}
	return under && slices.Contains(testDirs, dir)
}

// testDirs are the directories that have only tests of the library and helpers of such tests.
var testDirs = []string{"/tests", "/lua", "/internal/hand", "/internal/queuetest"}

// root is the directory of the library.
var root = func() string {
	_, file, _, _ := runtime.Caller(0)
	return path.Dir(path.Dir(path.Dir(file)))
}()

// Path returns the path of a file of the library.
func Path(elem ...string) string { return filepath.Join(append([]string{root}, elem...)...) }

// prefixOf returns the prefix in the first key of a command. A script that declares no keys has
// them among its arguments. TIME, INFO and CONFIG have no key, so any prefix works.
func prefixOf(cmd redis.Cmder) string {
	args, at := cmd.Args(), 1
	switch cmd.Name() {
	case "eval", "evalsha", "eval_ro", "evalsha_ro":
		at = 3
		if len(args) > 2 && fmt.Sprint(args[2]) == "0" {
			at += slices.IndexFunc(args[at:], func(arg any) bool { return strings.Contains(fmt.Sprint(arg), ":{") })
		}
	case "time", "info", "config":
		return filePrefix
	}
	if at >= len(args) {
		return ""
	}
	key := fmt.Sprint(args[at])
	if prefix, _, ok := strings.Cut(key, ":{"); ok {
		return prefix
	}
	return key[:max(0, strings.LastIndexByte(key, ':'))]
}
