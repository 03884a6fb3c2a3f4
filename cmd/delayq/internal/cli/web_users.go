package cli

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/term"
)

// The bounds of a password file. A hash of a higher cost takes seconds for each login.
const (
	mostUsersFile = 1 << 20 // bytes
	leastCost     = 10
	mostCost      = 15
	mostPassword  = 72 // bytes that bcrypt looks at
	mostWaiting   = 32 // logins that wait for their turn
)

// readOnlyUser is what follows the hash of a user who may only read.
const readOnlyUser = "read"

// A webUser is a line of a password file.
type webUser struct {
	hash     []byte
	readOnly bool
}

// users are those of a password file.
type users struct {
	path   string
	secret [32]byte      // of the passwords that were right
	turn   chan struct{} // one hash is computed at a time, so that guessing is slow

	waiting atomic.Int32
	mu      sync.Mutex
	all     map[string]webUser
	known   map[string][]byte // by name: a MAC of the password that was right, because bcrypt is slow
}

// newUsers reads a password file.
func newUsers(path string) (*users, error) {
	u := &users{path: path, turn: make(chan struct{}, 1)}
	_, _ = rand.Read(u.secret[:]) // it never fails
	return u, u.load()
}

// load reads the file anew. With a mistake in it, the users stay those that they were.
func (u *users) load() error {
	all, err := readUsers(u.path)
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all, u.known = all, make(map[string][]byte)
	return nil
}

// readUsers reads the lines of a password file.
func readUsers(name string) (map[string]webUser, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, badFile("--auth-file: %v", err)
	}
	if mode := info.Mode().Perm(); mode&0o027 != 0 && info.Mode().IsRegular() && runtime.GOOS != "windows" {
		return nil, badFile("--auth-file %s: others can read or write it (mode %04o); expected 0640 or 0600", name, mode)
	}
	text, err := fileOf(name, mostUsersFile)
	if err != nil {
		return nil, badFile("--auth-file: %v", err)
	}
	all, n := make(map[string]webUser), 0
	for line := range bytes.Lines(text) {
		n++
		line := strings.TrimSpace(string(line))
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		user, hash, _ := strings.Cut(line, ":")
		hash, right, limited := strings.Cut(hash, ":")
		cost, err := bcrypt.Cost([]byte(hash))
		switch { // no text shows what may be a password
		case user == "" || strings.TrimSpace(user) != user:
			return nil, badFile("--auth-file %s: line %d has no name; expected name:hash", name, n)
		case err != nil:
			return nil, badFile("--auth-file %s: line %d: the password is not hashed with bcrypt; delayqd web --add-user writes such a line", name, n)
		case cost < leastCost || cost > mostCost:
			return nil, badFile("--auth-file %s: line %d: the cost of the hash is %d; expected %d to %d", name, n, cost, leastCost, mostCost)
		case limited && right != readOnlyUser:
			return nil, badFile("--auth-file %s: line %d: after the hash only :%s is allowed", name, n, readOnlyUser)
		case all[user].hash != nil:
			return nil, badFile("--auth-file %s: line %d: the name is there twice", name, n)
		}
		all[user] = webUser{[]byte(hash), limited}
	}
	if len(all) == 0 {
		return nil, badFile("--auth-file %s: it has no users", name)
	}
	return all, nil
}

// nobody is compared with the password of a name that does not exist, which takes as long.
var nobody = []byte("$2a$10$7EqJtq98hPqEX7fNZaFWoOhi5BWUv2gUn0kZK1Bjd0nZ6d3v9pqqK")

// enter returns the status of a login.
func (u *users) enter(ctx context.Context, name, password string) int {
	mac := func(user webUser) []byte {
		m := hmac.New(sha256.New, u.secret[:])
		m.Write(user.hash)
		m.Write([]byte(password))
		return m.Sum(nil)
	}
	u.mu.Lock()
	user, exists := u.all[name]
	known := u.known[name]
	u.mu.Unlock()
	if exists && known != nil && hmac.Equal(known, mac(user)) {
		return http.StatusOK
	}
	if len(password) > mostPassword {
		return http.StatusUnauthorized
	}
	if u.waiting.Add(1) > mostWaiting {
		u.waiting.Add(-1)
		return http.StatusTooManyRequests
	}
	defer u.waiting.Add(-1)
	select {
	case u.turn <- struct{}{}:
		defer func() { <-u.turn }()
	case <-ctx.Done():
		return http.StatusUnauthorized
	}
	hash := user.hash
	if !exists {
		hash = nobody
	}
	if bcrypt.CompareHashAndPassword(hash, []byte(password)) != nil || !exists {
		return http.StatusUnauthorized
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if now, still := u.all[name]; still && bytes.Equal(now.hash, hash) {
		u.known[name] = mac(user)
	}
	return http.StatusOK
}

// errReadOnly is the answer to a user who may only read.
var errReadOnly = errors.New("you may read and not act")

// mayAct returns an error if a user may only read.
func (l *login) mayAct(r *http.Request) error {
	if l.users == nil {
		return nil
	}
	l.users.mu.Lock()
	defer l.users.mu.Unlock()
	if user, exists := l.users.all[l.user(r)]; !exists || user.readOnly {
		return errReadOnly
	}
	return nil
}

// addUser writes the line of a user, with the password that is read from stdin.
func (a *app) addUser(name string, readOnly bool) error {
	if strings.TrimSpace(name) != name || strings.ContainsAny(name, ":\r\n") || strings.HasPrefix(name, "#") {
		return usage("--add-user %q: a name has no colon, no line break, no white space around it and no # in front", name)
	}
	password, err := a.typedPassword()
	if err != nil {
		return err
	}
	if len(password) < 8 || len(password) > mostPassword {
		return usage("the password has %d bytes; expected 8 to %d", len(password), mostPassword)
	}
	if bytes.ContainsFunc(password, unicode.IsControl) {
		return usage("the password has a line break or another control character, which no browser sends")
	}
	hash, err := bcrypt.GenerateFromPassword(password, 12)
	if err != nil {
		return err
	}
	line := name + ":" + string(hash)
	if readOnly {
		line += ":" + readOnlyUser
	}
	_, err = fmt.Fprintln(a.stdout(), line)
	return err
}

// typedPassword reads a password from stdin. A terminal does not show it.
func (a *app) typedPassword() ([]byte, error) {
	if file, ok := a.in.Reader.(*os.File); ok && a.in.terminal {
		fmt.Fprint(a.err, "password: ")
		password, err := term.ReadPassword(int(file.Fd()))
		fmt.Fprintln(a.err)
		return password, err
	}
	text, err := bounded(a.in, "stdin", 1<<10)
	return bytes.TrimRight(text, "\r\n"), err
}
