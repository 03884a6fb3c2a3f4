package cli

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
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
	for _, args := range [][]string{
		{"--listen", ":0"}, {"--listen", "0.0.0.0:0"}, {"--listen", "192.0.2.1:0"}, {"--listen", "[::]:0"}, {"--listen", "here"},
		{"--auth-file", bad}, {"--auth-file", empty}, {"--auth-file", "/nothing"}, {"--auth-file", bad, "--trust-user-header", "X"},
		{"--trust-user-header", "X-User"}, {"--trust-proxy", "10.0.0.0/8"}, {"--trust-user-header", "X", "--trust-proxy", "ten"},
		{"--no-auth", "--auth-file", bad}, {"--trusted-origin", "here"}, {"--language", "de"}, {"--every", "1ms"}, {"-o", "json"}, {"x"},
	} {
		r := cli.do("", append([]string{"web"}, args...)...)
		want := exitUsage
		if len(args) == 2 && args[0] == "--auth-file" { // the flags are right
			want = exitConfig
		}
		require.Equal(t, want, r.code, "%v: %s", args, r.err)
		require.NotContains(t, r.err, "secret")
	}
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

// A password file that is not safe is a mistake, and no message has a password in it.
func TestPasswordFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users")
	weak, err := bcrypt.GenerateFromPassword([]byte("x"), bcrypt.MinCost)
	require.NoError(t, err)
	good := userLine("ann", "hunter-hunter")
	for text, want := range map[string]string{
		"ann:hunter2": "line 1: the password is not hashed with bcrypt", "\n# x\nann": "line 3: the password is not hashed", ":" + good[4:]: "line 1 has no name",
		"ann:" + string(weak): "the cost of the hash is 4; expected 10 to 15", good + ":admin": "after the hash only :read", good + "\n" + good: "line 2: the name is there twice",
		"# nobody\n": "it has no users", strings.Repeat("#\n", 1<<20): "has more than",
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := readUsers(file)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "hunter")
		require.Equal(t, exitConfig, codeOf(err))
	}
	require.NoError(t, os.WriteFile(file, []byte(good), 0o600))
	for mode, fine := range map[os.FileMode]bool{0o600: true, 0o640: true, 0o400: true, 0o644: false, 0o666: false, 0o660: false, 0o602: false} {
		require.NoError(t, os.Chmod(file, mode))
		_, err := readUsers(file)
		require.Equal(t, fine, err == nil, "%o: %v", mode, err)
	}
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
