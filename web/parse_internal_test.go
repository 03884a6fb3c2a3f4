package web

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/delayqtest"
)

// Whatever is typed as a time or a duration is one within the bounds of time.Duration, or refused.
func FuzzTimes(f *testing.F) {
	for _, seed := range []string{"-24h", "3d", "NaNd", "Infd", "1e300d", "now", "2026-11-20 14:00", "2026-11-20T14:00:00.5Z", "9999999999999d", "0x1pd", "-0d", ""} {
		f.Add(seed)
	}
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		d, err := span(text)
		if err == nil && strings.HasSuffix(strings.TrimSpace(text), "d") {
			require.LessOrEqual(t, d.Abs(), 40_000*24*time.Hour)
		}
		at, err := moment(text, now)
		if err == nil && strings.TrimSpace(text) != "" {
			require.False(t, at.IsZero() && !strings.HasPrefix(strings.TrimSpace(text), "0001"), "%q", text)
		}
	})
}

// Whatever is in the link of a page, it is answered, and not by an error of the page itself.
func FuzzLinks(f *testing.F) {
	q := delayqtest.Start(f)
	_, err := q.Client.Enqueue(f.Context(), "t", "s", []byte("{}"))
	require.NoError(f, err)
	h, err := New(q.Inspector, Actions(q.Client))
	require.NoError(f, err)
	f.Cleanup(h.Close)
	var names []string
	for name := range routes {
		names = append(names, name)
	}
	for _, seed := range []string{
		"topic=t&cursor=" + base64.RawURLEncoding.EncodeToString([]byte("\xff")), "topic=t&rows=-1", "topic=t&cursor=x&state=ready", "sort=-next&group=1&in=%FF",
		"topic=t&columns=payload,header:&rows=100", "topic=t&id=s&do=cancel&state=ready", "topic=t&copy=s", "topic=t&do=limits&key=%00", "run=9223372036854775808",
		"topic=t&from=Infd", "topic=%FF&id=%FF", "topic=t&all=1&do=purge&state=dead&failure=0", "did=run&n=99999999999999999999",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		u, err := url.Parse("/?" + query)
		if err != nil || len(query) > 1000 {
			return
		}
		for _, name := range names {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			u.Path = "/" + name
			r.URL = u
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			require.NotEqual(t, http.StatusInternalServerError, w.Code, "%s?%s", name, query)
			require.NotEqual(t, http.StatusServiceUnavailable, w.Code, "%s?%s: %s", name, query, w.Body.String())
		}
	})
}
