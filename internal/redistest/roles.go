package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// rolesEnv names a file with users, such as docs/acl/delayq.acl. With it, the Redis servers of
// tests have these users, and the library connects as one of them. No other user may execute a
// script. Tests make their own calls to Redis as the user default.
const rolesEnv = "DELAYQ_ROLES"

// Roles reports whether the library runs as the users of an ACL file.
func Roles() bool { return os.Getenv(rolesEnv) != "" }

// needNoRoles skips a test on the embedded Redis in a run with users, because it has none.
func needNoRoles(t testing.TB) {
	t.Helper()
	if Roles() {
		t.Skip("the embedded Redis has no users")
	}
}

// NoRoles are the arguments for a server without these users, for tests that create their own.
var NoRoles = []string{"--aclfile", os.DevNull}

const (
	userPrefix = "delayq-" // start of the names of the users
	filePrefix = "delayq"  // start of the keys in the file
)

// users returns the lines of the file for keys with a prefix, changed as docs/operations.md
// describes. For a prefix other than the file's the users have other names.
func users(prefix string, cluster bool) ([]string, error) {
	name := os.Getenv(rolesEnv)
	if !filepath.IsAbs(name) {
		name = Path(name)
	}
	file, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var list []string
	for line := range strings.Lines(string(file)) {
		words := strings.Fields(line)
		role, _ := strings.CutPrefix(words[1], userPrefix)
		for i, word := range words {
			if rest, ok := strings.CutPrefix(word[1:], filePrefix+":"); ok && strings.ContainsAny(word[:1], "~&") {
				words[i] = word[:1] + prefix + ":" + rest
			}
		}
		if cluster {
			words = append(words, "+cluster|slots", "+command")
		}
		words[1], _ = account(role, prefix, false)
		list = append(list, strings.Join(words, " "))
		if role != "worker" { // one with WaitReplicas
			words[1], _ = account(role, prefix, true)
			list = append(list, strings.Join(append(words, "+wait"), " "))
		}
	}
	return list, nil
}

// account returns the name and the password of a user.
func account(role, prefix string, waits bool) (name, password string) {
	name, password = userPrefix+role, "change-me-"+role
	if waits {
		name += "+wait"
	}
	if prefix != filePrefix {
		name += "/" + prefix
	}
	return name, password
}

// servers holds the servers that have the users, by their addresses.
var servers sync.Map

// withUsers writes the file of users for a server that is about to start.
func (s *Server) withUsers(args []string) ([]string, error) {
	if !Roles() || slices.Contains(args, "--aclfile") || slices.Contains(args, "--sentinel") {
		return args, nil
	}
	s.cluster = slices.Contains(args, "--cluster-enabled")
	s.aclFile = filepath.Join(s.dir, "users.acl")
	s.granted = map[string]bool{filePrefix: true}
	list, err := users(filePrefix, s.cluster)
	if err != nil {
		return nil, err
	}
	list = append(list, "user default on nopass ~* &* +@all -@scripting +script")
	return append(args, "--aclfile", s.aclFile), os.WriteFile(s.aclFile, []byte(strings.Join(list, "\n")+"\n"), 0o600)
}

// grant creates the users for a prefix once, so that they survive a restart.
func (s *Server) grant(prefix string) error {
	s.grants.Lock()
	defer s.grants.Unlock()
	if s.granted[prefix] {
		return nil
	}
	list, err := users(prefix, s.cluster)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(s.aclFile, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(strings.Join(list, "\n") + "\n")
	err = errors.Join(err, file.Close(), s.ask(func(ctx context.Context, rdb *redis.Client) error {
		_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, line := range list {
				setuser := []any{"ACL", "SETUSER"}
				for _, word := range strings.Fields(line)[1:] {
					setuser = append(setuser, word)
				}
				p.Do(ctx, setuser...)
			}
			return nil
		})
		return err
	}))
	s.granted[prefix] = err == nil
	return err
}

// grant creates the users for a prefix on the server at an address. It does nothing for a server
// that redistest has not started.
func grant(addr, prefix string) error {
	if s, ok := servers.Load(addr); ok {
		return s.(*Server).grant(prefix)
	}
	return nil
}

// Optional reports whether the library can do without a command that is refused. go-redis
// introduces itself only where it may. An Inspector has another way than EVALSHA_RO, and leaves out
// what INFO and CONFIG would say.
func Optional(object string) bool {
	return strings.HasPrefix(object, "client") || strings.HasSuffix(object, "_ro") || object == "info" || object == "config|get"
}

// denied returns an error if the server has denied something to one of the users, or a script to
// another user. In the second case the library has made a call without choosing a user.
func (s *Server) denied() error {
	if s.aclFile == "" || s.proc == nil || s.proc.gone() || frozen(s.proc.cmd.Process.Pid) == nil {
		return nil
	}
	return s.ask(func(ctx context.Context, rdb *redis.Client) error {
		log, err := rdb.ACLLog(ctx, 1000).Result()
		if err != nil {
			return nil // it has more serious trouble
		}
		var errs []error
		for _, e := range log {
			library := strings.HasPrefix(e.Username, userPrefix)
			tries := Optional(e.Object)
			if library && !tries || !library && strings.HasPrefix(e.Object, "eval") {
				errs = append(errs, fmt.Errorf("%s was denied to %s (%s, %s)", e.Object, e.Username, e.Reason, e.Context))
			}
		}
		return errors.Join(errs...)
	})
}

// Denied returns what the servers that all tests share have denied to the users. Other servers fail
// their own tests.
func Denied() error {
	var errs []error
	servers.Range(func(_, s any) bool {
		errs = append(errs, s.(*Server).denied())
		return true
	})
	return errors.Join(errs...)
}
