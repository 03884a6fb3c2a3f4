package main

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

	"github.com/stretchr/testify/require"
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
	require.NoError(t, os.WriteFile(bad, []byte("alice:secret\nnobody\n"), 0o600))
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
	require.NoError(t, os.WriteFile(file, []byte("alice:p:w\r\n\nbob:2\n"), 0o600))
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
