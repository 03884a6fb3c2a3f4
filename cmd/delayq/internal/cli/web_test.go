package cli

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// The page serves a queue until it is asked to end, and acts unless it is told not to.
func TestWeb(t *testing.T) {
	t.Parallel()
	cli, client := onRealRedis(t)
	fill(t, client, "many", 25)
	for _, readOnly := range []bool{false, true} {
		args := []string{"web", "--listen", "127.0.0.1:0"}
		if readOnly {
			args = append(args, "--read-only")
		}
		cmd := cli.command(args...)
		errs, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line, err := bufio.NewReader(errs).ReadString('\n')
		require.NoError(t, err)
		m := regexp.MustCompile(`^page of prefix "\S+" on (http://127\.0\.0\.1:\d+/)\n$`).FindStringSubmatch(line)
		require.NotNil(t, m, line)
		require.Contains(t, get(t, m[1]), "many")
		require.Equal(t, "ok\n", get(t, m[1]+"healthz"))
		require.Equal(t, !readOnly, strings.Contains(get(t, m[1]+"topic?topic=many"), "Enqueue"))
		r, err := http.NewRequest(http.MethodGet, m[1], nil)
		require.NoError(t, err)
		r.Host = "rebound.example.com"
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusMisdirectedRequest, answer.StatusCode)
		http.DefaultClient.CloseIdleConnections()
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait())
	}
}

// Without a login it does not listen where others can reach it.
func TestWebUsage(t *testing.T) {
	cli := newTool(t, "127.0.0.1:1", "shop")
	bad := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(bad, []byte("alice:secret\n"), 0o600))
	empty := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	seen := map[string]bool{}
	refused := func(code int, want string, args ...string) {
		t.Helper()
		r := cli.do("", append([]string{"web"}, args...)...)
		require.Equal(t, code, r.code, "%v: %s", args, r.err)
		require.NotContains(t, r.err, "secret")
		require.Contains(t, r.err, want, args)
		text, _, _ := strings.Cut(strings.TrimPrefix(r.err, "error: "), "\n")
		seen[text] = true
	}
	for _, address := range []string{":0", "0.0.0.0:0", "192.0.2.1:0", "[::]:0"} {
		want := "others can reach " + address + ": it needs --auth-file, or --trust-user-header with --trust-proxy, or an explicit --no-auth"
		refused(exitUsage, want, "--listen", address)
	}
	refused(exitUsage, `the address "here" must be HOST:PORT or :PORT`, "--listen", "here")
	refused(exitConfig, "delayqd web --add-user writes such a line", "--auth-file", bad)
	refused(exitConfig, "it has no users", "--auth-file", empty)
	refused(exitConfig, "no such file", "--auth-file", "/nothing")
	refused(exitUsage, "--auth-file and --trust-user-header exclude each other", "--auth-file", bad, "--trust-user-header", "X")
	for _, args := range [][]string{{"--trust-user-header", "X-User"}, {"--trust-proxy", "10.0.0.0/8"}} {
		refused(exitUsage, "--trust-user-header and --trust-proxy need each other: anybody can send a header", args...)
	}
	refused(exitUsage, `--trust-proxy "ten": must be an address or a range such as 10.0.0.0/8`, "--trust-user-header", "X", "--trust-proxy", "ten")
	refused(exitUsage, "--no-auth excludes --auth-file and --trust-user-header", "--no-auth", "--auth-file", bad)
	refused(exitUsage, `--trusted-origin "here": must be a scheme and a host, such as https://admin.example.com`, "--trusted-origin", "here")
	refused(exitUsage, `Language("de"): must be one of `, "--language", "de")
	refused(exitUsage, "Every(1ms): must be from 500ms", "--every", "1ms")
	refused(exitUsage, "-o json: web serves pages; each has a .json beside it", "-o", "json")
	refused(exitUsage, "takes no arguments", "x")
	everyTextIsSeen(t, "web.go", "usage", seen)
}

func TestWebLogin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(file, []byte("# admins: change me\n"+userLine("alice", "p:w")+"\r\n\n  "+userLine("bob", "2")+":read \n"), 0o640))
	enter := func(f webFlags, change func(*http.Request)) (string, int) {
		l, err := f.login("root")
		require.NoError(t, err)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		change(r)
		name := ""
		w := httptest.NewRecorder()
		l.protect(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { name = l.user(r) })).ServeHTTP(w, r)
		return name, w.Code
	}
	users := webFlags{listen: ":1", authFile: file}
	for _, c := range []struct {
		flags  webFlags
		change func(*http.Request)
		name   string
		status int
	}{
		{users, func(r *http.Request) { r.SetBasicAuth("alice", "p:w") }, "alice", 200},
		{users, func(r *http.Request) { r.SetBasicAuth("bob", "2") }, "bob", 200},
		{users, func(r *http.Request) { r.SetBasicAuth("bob", "p:w") }, "", 401},
		{users, func(r *http.Request) { r.SetBasicAuth("carol", "") }, "", 401},
		{users, func(*http.Request) {}, "", 401},
		{users, func(r *http.Request) { r.SetBasicAuth("# admins", " change me") }, "", 401},
		{users, func(r *http.Request) { r.SetBasicAuth("bob", " 2") }, "", 401},
		{users, func(r *http.Request) { r.SetBasicAuth("bob", strings.Repeat("2", 73)) }, "", 401},
		{webFlags{listen: ":1", header: "X-User", proxies: []string{"192.0.2.0/24"}}, func(r *http.Request) { r.Header.Set("X-User", "carol") }, "carol", 200},
		{webFlags{listen: ":1", header: "X-User", proxies: []string{"192.0.2.1"}}, func(r *http.Request) { r.Header.Set("X-User", "carol") }, "carol", 200},
		{webFlags{listen: ":1", header: "X-User", proxies: []string{"10.0.0.0/8"}}, func(r *http.Request) { r.Header.Set("X-User", "carol") }, "", 403},
		{webFlags{listen: ":1", header: "X-User", proxies: []string{"192.0.2.0/24"}}, func(*http.Request) {}, "", 403},
		{webFlags{listen: ":1", header: "X-User", proxies: []string{"192.0.2.0/24"}}, func(r *http.Request) { r.Header["X-User"] = []string{"a", "b"} }, "", 403},
		{webFlags{listen: ":1", noAuth: true}, func(*http.Request) {}, "root", 200},
		{webFlags{listen: "127.0.0.1:1"}, func(r *http.Request) { r.Host = "localhost:9465" }, "root", 200},
		{webFlags{listen: "[::1]:1"}, func(r *http.Request) { r.Host = "[::1]:9465" }, "root", 200},
		{webFlags{listen: "127.0.0.1:1"}, func(r *http.Request) { r.Host = "evil.example.com" }, "", 421},
		{webFlags{listen: "127.0.0.1:1", origins: []string{"https://admin.example.com"}}, func(r *http.Request) { r.Host = "admin.example.com" }, "root", 200},
	} {
		name, status := enter(c.flags, c.change)
		require.Equal(t, c.status, status)
		require.Equal(t, c.name, name)
	}
}

// userLine returns a line of a password file.
func userLine(name, password string) string {
	hash, err := bcrypt.GenerateFromPassword([]byte(password), leastCost)
	if err != nil {
		panic(err)
	}
	return name + ":" + string(hash)
}

// A password file that is not safe is a mistake, which says what is expected, and no message has a
// password in it.
func TestPasswordFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users")
	weak, err := bcrypt.GenerateFromPassword([]byte("x"), bcrypt.MinCost)
	require.NoError(t, err)
	good := userLine("ann", "hunter-hunter")
	seen := map[string]bool{}
	refused := func(want string) {
		t.Helper()
		_, err := readUsers(file)
		require.EqualError(t, err, strings.ReplaceAll(want, "FILE", file))
		require.NotContains(t, err.Error(), "hunter")
		require.Equal(t, exitConfig, codeOf(err))
		seen[want] = true
	}
	refused("--auth-file: stat FILE: no such file or directory")
	for text, want := range map[string]string{
		"ann:hunter2":  "line 1: the password is not hashed with bcrypt; delayqd web --add-user writes such a line",
		"\n# x\nann":   "line 3: the password is not hashed with bcrypt; delayqd web --add-user writes such a line",
		":" + good[4:]: "line 1 has no name; expected name:hash", " ann :" + good[4:]: "line 1 has no name; expected name:hash",
		"ann:" + string(weak): "line 1: the cost of the hash is 4; expected 10 to 15",
		good + ":admin":       "line 1: after the hash only :read is allowed", good + "\n" + good: "line 2: the name is there twice",
		"# nobody\n": "it has no users",
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		refused("--auth-file FILE: " + want)
	}
	require.NoError(t, os.WriteFile(file, []byte(strings.Repeat("#\n", 1<<20)), 0o600))
	refused("--auth-file: FILE: has more than 1,048,576 bytes")
	require.NoError(t, os.WriteFile(file, []byte(good), 0o600))
	for mode, fine := range map[os.FileMode]bool{0o600: true, 0o640: true, 0o400: true, 0o644: false, 0o666: false, 0o660: false, 0o602: false} {
		require.NoError(t, os.Chmod(file, mode))
		if !fine {
			refused(fmt.Sprintf("--auth-file FILE: others can read or write it (mode %04o); expected 0640 or 0600", mode))
			continue
		}
		_, err := readUsers(file)
		require.NoError(t, err, "%o", mode)
	}
	everyTextIsSeen(t, "web_users.go", "badFile", seen)
}

// everyTextIsSeen fails if a file calls a function with a format that is none of the texts seen.
func everyTextIsSeen(t *testing.T, file, function string, seen map[string]bool) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	formats := 0
	ast.Inspect(parsed, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if name, is := call.Fun.(*ast.Ident); !is || name.Name != function {
			return true
		}
		format, err := strconv.Unquote(call.Args[0].(*ast.BasicLit).Value)
		require.NoError(t, err)
		formats++
		verbs := regexp.MustCompile(`%[0-9]*[a-z]`)
		like := regexp.MustCompile("^" + verbs.ReplaceAllString(regexp.QuoteMeta(format), ".*") + "$")
		require.True(t, slices.ContainsFunc(slices.Collect(maps.Keys(seen)), like.MatchString), "no test has seen %q", format)
		return true
	})
	require.Positive(t, formats)
}

// A right password is fast from the second time on, and a file that is loaded anew counts at once.
// With a mistake in it, the users stay.
func TestUsersAreLoadedAnew(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write(userLine("ann", "one") + "\n" + userLine("bob", "two"))
	u, err := newUsers(file)
	require.NoError(t, err)
	enter := func(name, password string) int { return u.enter(t.Context(), name, password) }
	for range 2 {
		require.Equal(t, 200, enter("ann", "one"))
		require.Equal(t, 401, enter("ann", "two"))
		require.Equal(t, 200, enter("bob", "two"))
		require.Equal(t, 401, enter("carol", "one"))
		require.Equal(t, 401, enter("carol", ""))
	}
	require.Len(t, u.known, 2)
	u.turn <- struct{}{} // as if somebody guessed
	require.Equal(t, 200, enter("ann", "one"), "who is known does not wait")
	<-u.turn
	u.waiting.Store(mostWaiting)
	require.Equal(t, 429, enter("ann", "guess"))
	require.Equal(t, 200, enter("ann", "one"))
	u.waiting.Store(0)

	write("ann:clear")
	require.Error(t, u.load())
	require.Equal(t, 200, enter("bob", "two"))
	write(userLine("ann", "other"))
	require.NoError(t, u.load())
	require.Equal(t, 401, enter("ann", "one"))
	require.Equal(t, 200, enter("ann", "other"))
	require.Equal(t, 401, enter("bob", "two"))
}

// --add-user makes lines that are understood. SIGHUP loads them, and a user who may only read is
// refused whatever acts.
func TestWebUsersAsAProcess(t *testing.T) {
	t.Parallel()
	cli, client := onRealRedis(t)
	_, err := client.Enqueue(t.Context(), "order:cancel", "order-1", nil, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "users")
	add := func(args ...string) string {
		r := cli.do("long enough\n", append([]string{"web", "--add-user"}, args...)...)
		require.Zero(t, r.code, r.err)
		return r.out
	}
	require.Equal(t, exitUsage, cli.do("short\n", "web", "--add-user", "ann").code)
	require.Equal(t, exitUsage, cli.do("long enough\n", "web", "--add-user", "a:b").code)
	two := cli.do("long enough\nand more\n", "web", "--add-user", "ann")
	require.Equal(t, exitUsage, two.code)
	require.Contains(t, two.err, "line break")
	require.NoError(t, os.WriteFile(file, []byte(add("ann")+add("reader", "--read-only")), 0o600))

	cmd := cli.command("web", "--listen", "127.0.0.1:0", "--auth-file", file)
	errs, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(errs); s.Scan(); {
			lines <- s.Text()
		}
	}()
	await := func(text string) string {
		t.Helper()
		for {
			if line := queuetest.Receive(t, lines); strings.Contains(line, text) {
				return line
			}
		}
	}
	_, address, _ := strings.Cut(await("page of prefix"), " on ")
	get := func(user, password, method, path, form string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, address+path, strings.NewReader(form))
		require.NoError(t, err)
		r.SetBasicAuth(user, password)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		answer, err := client.Do(r)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		return answer.StatusCode
	}
	const enqueue = "topic=new&payload=1"
	require.Equal(t, 200, get("reader", "long enough", "GET", "topics", ""))
	require.Equal(t, 200, get("ann", "long enough", "GET", "topics", ""))
	require.Equal(t, 403, get("reader", "long enough", "POST", "enqueue", enqueue))
	require.Less(t, get("ann", "long enough", "POST", "enqueue", enqueue), 400)
	require.Equal(t, 401, get("ann", "wrong", "GET", "topics", ""))
	require.Contains(t, await("login refused"), "user=ann")

	require.NoError(t, os.WriteFile(file, []byte(add("bob")), 0o600))
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	await("the password file was loaded")
	require.Equal(t, 401, get("ann", "long enough", "GET", "topics", ""))
	require.Equal(t, 200, get("bob", "long enough", "GET", "topics", ""))
	require.NoError(t, os.WriteFile(file, []byte("bob:clear"), 0o600))
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	await("was not loaded, and the users stay")
	require.Equal(t, 200, get("bob", "long enough", "GET", "topics", ""))
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	for range lines { // until it has ended
	}
	require.NoError(t, cmd.Wait())
}
