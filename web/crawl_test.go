package web_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/delayq/delayq/web"
)

// mounts returns servers with the page under the paths that people use, and the address of each.
func mounts(t *testing.T, h http.Handler) map[string]string {
	start := func(h http.Handler) string {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return s.URL
	}
	root := start(h)
	below := http.NewServeMux()
	below.Handle("/admin/delayq/", h)
	stripped := http.NewServeMux()
	stripped.Handle("/x/y/", http.StripPrefix("/x/y", h))
	target, err := url.Parse(root)
	require.NoError(t, err)
	proxied := http.NewServeMux()
	proxied.Handle("/ops/queue/", http.StripPrefix("/ops/queue", httputil.NewSingleHostReverseProxy(target)))
	return map[string]string{
		"root": root + "/", "below": start(below) + "/admin/delayq/", "stripped": start(stripped) + "/x/y/",
		"proxied": start(proxied) + "/ops/queue/",
	}
}

// walk calls f for each element of a page.
func walk(n *html.Node, f func(*html.Node)) {
	if n.Type == html.ElementNode {
		f(n)
	}
	for c := n.FirstChild; c != nil; c = c.NextSibling {
		walk(c, f)
	}
}

func attr(n *html.Node, name string) (string, bool) {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val, true
		}
	}
	return "", false
}

// inert fails the test if a page has what the policy forbids, or markup from the data.
func inert(t *testing.T, where string, root *html.Node) {
	t.Helper()
	walk(root, func(n *html.Node) {
		_, src := attr(n, "src")
		if n.Data == "script" && (!src || n.FirstChild != nil) || n.Data == "style" || n.Data == "img" || n.Data == "iframe" || n.Data == "b" || n.Data == "i" {
			t.Errorf("%s: has <%s>", where, n.Data)
		}
		for _, a := range n.Attr {
			if strings.HasPrefix(a.Key, "on") || a.Key == "style" || a.Key != "value" && strings.HasPrefix(strings.TrimSpace(strings.ToLower(a.Val)), "javascript:") {
				t.Errorf("%s: <%s %s=%q>", where, n.Data, a.Key, a.Val)
			}
		}
	})
}

func TestEveryLinkUnderFourMounts(t *testing.T) {
	q := world(t)
	h := page(t, q, web.Actions(q.Client))
	for name, home := range mounts(t, h) {
		t.Run(name, func(t *testing.T) {
			base, err := url.Parse(home)
			require.NoError(t, err)
			seen := map[string]bool{home: true}
			kinds := make(map[string]int)
			for todo := []string{home, home + "find"}; len(todo) > 0; {
				at := todo[0]
				todo = todo[1:]
				r, err := http.Get(at)
				require.NoError(t, err)
				text := body(t, r)
				here := r.Request.URL
				require.Equal(t, http.StatusOK, r.StatusCode, "%s: %s", at, text)
				kinds[strings.TrimPrefix(here.Path, base.Path)]++
				if !strings.HasPrefix(r.Header.Get("Content-Type"), "text/html") {
					continue
				}
				root, err := html.Parse(strings.NewReader(text))
				require.NoError(t, err)
				inert(t, at, root)
				walk(root, func(n *html.Node) {
					for _, name := range []string{"href", "src", "action", "hx-get"} {
						ref, ok := attr(n, name)
						if !ok || strings.HasPrefix(ref, "#") {
							continue
						}
						next, err := here.Parse(ref)
						if err != nil || !strings.HasPrefix(next.Path, base.Path) || strings.HasPrefix(ref, "/") || next.Host != base.Host {
							t.Errorf("%s: the link %q leads away", at, ref)
							continue
						}
						next.Fragment = ""
						query := next.Query()
						if query.Has("lang") || query.Has("theme") {
							continue
						}
						if name != "action" && !seen[next.String()] { // a form has parameters of its own
							seen[next.String()] = true
							todo = append(todo, next.String())
						}
					}
				})
			}
			for _, kind := range []string{
				"topic", "jobs", "job", "payload", "find", "keys", "key", "failures", "servers", "schedules", "schedule", "audit", "redis", "help", "confirm",
				"bulks", "pause", "enqueue", "new-schedule", "edit-schedule", "edit-key", "edit-topic", "topics.json", "key.json", "job.json", "jobs.json",
			} {
				if kinds[kind] == 0 {
					t.Errorf("no link leads to %s", kind)
				}
			}
		})
	}
}
