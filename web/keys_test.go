package web_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/web"
)

type keyAnswer struct {
	Ready, Laned int64
	Keys         []struct {
		Key       string
		KeyBase64 string `json:"key_base64"`
		Waiting   int64
		Weight    int
		First     string
		Paused    bool
		HeldUntil time.Time `json:"held_until"`
	}
	Next string
}

func askKeys(t *testing.T, h http.Handler, target string) (p keyAnswer) {
	t.Helper()
	w := get(t, h, target)
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
	return p
}

func TestKeysPageByPage(t *testing.T) {
	h := page(t, world(t))
	whole := askKeys(t, h, link("keys.json", "topic", "invoice"))
	require.Len(t, whole.Keys, 3)
	require.Empty(t, whole.Next)
	require.Equal(t, "t-1", whole.Keys[0].Key)
	require.EqualValues(t, 2, whole.Keys[0].Waiting)
	require.Equal(t, 3, whole.Keys[0].Weight)
	require.Equal(t, "i-1", whole.Keys[0].First)
	require.Equal(t, 1, whole.Keys[1].Weight)
	require.True(t, whole.Keys[0].Paused)
	require.False(t, whole.Keys[1].Paused)
	require.Zero(t, whole.Keys[1].HeldUntil)
	require.WithinDuration(t, time.Now().Add(time.Hour), whole.Keys[2].HeldUntil, time.Minute)
	require.Equal(t, base64.StdEncoding.EncodeToString([]byte(evilBytes)), whole.Keys[2].KeyBase64)

	var seen []string
	for cursor := ""; ; {
		p := askKeys(t, h, link("keys.json", "topic", "invoice", "rows", "1", "cursor", cursor))
		for _, k := range p.Keys {
			seen = append(seen, k.Key+k.KeyBase64)
		}
		if cursor = p.Next; cursor == "" {
			break
		}
		require.Contains(t, get(t, h, link("keys", "topic", "invoice", "rows", "1")).Body.String(), `rel="next"`)
	}
	require.Len(t, seen, 3)
	for i, k := range whole.Keys {
		require.Equal(t, k.Key+k.KeyBase64, seen[i])
	}

	for _, bad := range [][]string{{"cursor", "?"}, {"rows", "many"}, {"rows", "0"}, {"rows", "1001"}} {
		require.Equal(t, http.StatusBadRequest, get(t, h, link("keys", "topic", "invoice", bad[0], bad[1])).Code, bad)
	}
	require.Equal(t, http.StatusNotFound, get(t, h, link("keys", "topic", "none")).Code)
	require.Contains(t, get(t, h, link("keys", "topic", "report")).Body.String(), "No ready job has a key.")
}

// The links of the page lead to exactly the jobs of each key, whatever its bytes are.
func TestKeysLeadToTheirJobs(t *testing.T) {
	h := page(t, world(t))
	root, err := html.Parse(strings.NewReader(get(t, h, link("keys", "topic", "invoice")).Body.String()))
	require.NoError(t, err)
	found := make(map[string]int)
	walk(root, func(n *html.Node) {
		ref, _ := attr(n, "href")
		if n.Data != "a" || !strings.Contains(ref, "key=") {
			return
		}
		var p struct {
			Jobs []struct {
				Key       string
				KeyBase64 string `json:"key_base64"`
			}
		}
		w := get(t, h, "/"+strings.Replace(ref, "jobs?", "jobs.json?", 1))
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		for _, j := range p.Jobs {
			found[j.Key+j.KeyBase64]++
		}
	})
	require.Equal(t, map[string]int{"t-1": 2, "t-2": 1, strings.ToValidUTF8(evilBytes, "\uFFFD") + base64.StdEncoding.EncodeToString([]byte(evilBytes)): 1}, found)
	require.Contains(t, get(t, h, link("job", "topic", "invoice", "id", "i-3")).Body.String(), `>t-2</a>`)
	require.NotContains(t, get(t, h, link("jobs", "topic", "order:cancel")).Body.String(), `scope="col">Key<`, "no job there has a key")
}

func TestActOnTheJobsOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := world(t)
		h := page(t, q, web.Actions(q.Client))
		list := []string{"do", "cancel", "topic", "invoice", "state", "ready", "key", "t-1", "all", "1"}
		require.Contains(t, get(t, h, link("confirm", list...)).Body.String(), "2 jobs match now")
		w := post(t, h, link("act", list...), url.Values{"typed": {"invoice"}})
		require.Equal(t, http.StatusSeeOther, w.Code)
		synctest.Wait() // it has ended
		left, err := q.Inspector.Jobs(t.Context(), delayq.Query{Topic: "invoice", State: delayq.StateReady})
		require.NoError(t, err)
		require.Len(t, left.Jobs, 3)
		for _, j := range left.Jobs {
			require.NotEqual(t, "t-1", j.Key)
		}
	})
}
