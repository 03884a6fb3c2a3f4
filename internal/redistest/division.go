package redistest

import (
	"context"
	"fmt"
	"hash/crc32"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// library is what the names of the library's functions begin with.
const library = "github.com/delayq/delayq."

// A Call is what the library asks Redis for.
type Call struct {
	// Function is the exported method of Client that was called first, else the first function of the library.
	Function string
	Cmd      redis.Cmder
	Turn     uint // is one more when the function asks for the same again in this test
}

// RoleOf tells which role makes a call, and what to count it as. The library's tests set it before all else.
var RoleOf func(Call) (role, what string)

// A Tally is what was done as a role.
type Tally struct {
	Calls int
	Did   map[string]int  // by what it is counted as
	Tests map[string]bool // their names
}

var (
	tallies     = map[string]*Tally{}
	talliesLock sync.Mutex
)

// Tallies returns what was done as each role. To be called after all tests.
func Tallies() map[string]*Tally { return tallies }

// Count notes something that a test has done as a role.
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

// hooked are the clients whose calls are divided, each with its division.
var hooked sync.Map

// InRoles makes the library's calls on a client calls of the users, until the end of the test: each goes to a client like it that has the
// user's name. The clients of Server and Cluster are so already. It does nothing unless Roles, nor on a server that has not the users.
func InRoles(t testing.TB, rdb redis.UniversalClient) {
	if !Roles() || RoleOf == nil || !haveUsers(rdb) {
		return
	}
	d := newDivision(t, rdb)
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		cluster.OnNewNode(func(node *redis.Client) { newDivision(t, node) }) // what the library asks of a single node
	}
	hooked.Store(rdb, d)
	t.Cleanup(func() { hooked.Delete(rdb) })
}

// Close closes a client and those of the users in its place.
func Close(rdb redis.UniversalClient) error {
	if d, ok := hooked.Load(rdb); ok {
		d.(*division).close()
	}
	return rdb.Close()
}

// As makes a client like rdb that is a user's, if rdb's server has the users, and is closed at the end of the test.
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

// Account returns the name and the password of a user, and makes sure that there is one; nothing unless Roles.
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

// addrs are the addresses that a client asks.
func addrs(rdb redis.UniversalClient) []string {
	switch c := rdb.(type) {
	case *redis.Client:
		return []string{c.Options().Addr}
	case *redis.ClusterClient:
		return c.Options().Addrs
	}
	return nil
}

// haveUsers tells whether the servers of a client have the users. Those behind Sentinels have.
func haveUsers(rdb redis.UniversalClient) bool {
	for _, addr := range addrs(rdb) {
		if _, ok := servers.Load(addr); !ok && addr != "FailoverClient" {
			return false
		}
	}
	return true
}

// like makes a client like rdb, with another name if there is one.
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

// none writes zeros as one gives them to go-redis, for which a zero that is given is the default.
func none[N int | time.Duration](fields ...*N) {
	for _, f := range fields {
		if *f == 0 {
			*f = -1
		}
	}
}

// A division is a hook that hands the library's calls to clients of the users.
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
	return func(ctx context.Context, cmds []redis.Cmder) error {
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

// introductions are the commands with which go-redis itself begins.
var introductions = []string{"hello", "client", "cluster"}

// to gives the client over which commands go, nil if it is not the library that calls.
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

// turn counts calls. The first number depends on the test, so that what one call or another begins with is not the same role's in all tests.
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

// as gives the client of a user, nil after close.
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

// Worker gives the client that a server is to have in place of rdb, and the name of the test that it belongs to: rdb itself if its calls are
// not divided.
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

// function finds in the stack what Call.Function says; nothing if it is the tests that call, who may do so from within a handler.
func function() (name string) {
	var pcs [100]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	method := false
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if path.Dir(f.File) != root || path.Base(f.File) == "contain.go" { // which starts goroutines for others
			continue
		}
		if strings.HasSuffix(f.File, "_test.go") {
			break
		}
		is := strings.TrimPrefix(f.Function, library)
		of, ok := strings.CutPrefix(is, "(*Client).")
		if exported := ok && of[0] < 'a'; exported {
			name, _, _ = strings.Cut(of, ".") // of a function literal in it
			method = true
		} else if !method {
			name, _, _ = strings.Cut(is, ".func") // of a function literal in it
		}
	}
	return name
}

// root is the directory of the library.
var root = func() string {
	_, file, _, _ := runtime.Caller(0)
	return path.Dir(path.Dir(path.Dir(file)))
}()

// prefixOf tells from the first key of a command what prefix it has. TIME has no key, and no user is denied it: any prefix will do.
func prefixOf(cmd redis.Cmder) string {
	args, at := cmd.Args(), 1
	switch cmd.Name() {
	case "eval", "evalsha":
		at = 3
	case "time":
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
