package cli

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// Without a login, a request is answered only if its host is this machine, however it is spelled.
func TestWebHosts(t *testing.T) {
	l, err := (&webFlags{listen: "127.0.0.1:1"}).login("root")
	require.NoError(t, err)
	for host, status := range map[string]int{
		"localhost:9465": http.StatusOK, "LOCALHOST": http.StatusOK, "127.0.0.1": http.StatusOK, "127.9.9.9:80": http.StatusOK, "[::1]": http.StatusOK,
		"[::1]:9465": http.StatusOK, "[::1%.evil.example]": http.StatusMisdirectedRequest, "[::1%25evil.example]:80": http.StatusMisdirectedRequest,
		"::1%evil.example": http.StatusMisdirectedRequest, "localhost.evil.example": http.StatusMisdirectedRequest, "127.0.0.1.evil.example": http.StatusMisdirectedRequest,
		"0.0.0.0": http.StatusMisdirectedRequest, "[::]": http.StatusMisdirectedRequest, "": http.StatusMisdirectedRequest, "127.1": http.StatusMisdirectedRequest,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.Host = host
		_, got := l.enter(r)
		require.Equal(t, status, got, "%q", host)
	}
	_, err = (&webFlags{listen: "[::1%lo]:1"}).login("root")
	require.Error(t, err, "others can reach it as far as is known")
}
