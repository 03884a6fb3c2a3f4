package web_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
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
		if n.Data != "a" || !strings.HasPrefix(ref, "jobs?") || !strings.Contains(ref, "key=") {
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

// The keys of a topic with limits show what is in force for each, how many of its jobs run, and why
// those that wait do so. A topic all of whose keys wait still has its tab.
func TestKeysShowTheirLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delayqtest.Start(t)
		ctx := t.Context()
		require.NoError(t, q.Client.SetLimits(ctx, "report", delayq.Limits{RunningPerKey: 2, RatePerKey: delayq.Per(600, time.Hour).Burst(3)}))
		require.NoError(t, q.Client.SetKeyLimits(ctx, "report", "own", delayq.KeyLimits{Running: 1}))
		require.NoError(t, q.Client.SetKeyLimits(ctx, "report", "slow", delayq.KeyLimits{Running: 5, Rate: delayq.Per(1, time.Hour)}))
		for _, key := range []string{"each", "own", "slow"} {
			for i := range 4 {
				_, err := q.Client.Enqueue(ctx, "report", fmt.Sprint(key, "-", i), nil, delayq.Key(key))
				require.NoError(t, err)
			}
		}
		wait, started := make(chan struct{}), make(chan struct{}, 12)
		stop := q.Serve(func(s *delayq.Server) {
			s.HandlerFunc("report", func(context.Context, *delayq.Job) error {
				started <- struct{}{}
				<-wait
				return nil
			}, delayq.Concurrency(20))
		})
		defer stop()
		defer close(wait)
		for range 4 {
			<-started
		}
		synctest.Wait()
		h := page(t, q)
		keys := map[string]limitedKey{}
		var p struct{ Keys []limitedKey }
		w := get(t, h, link("keys.json", "topic", "report"))
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		for _, k := range p.Keys {
			keys[k.Key] = k
			require.NotZero(t, k.LimitedUntil)
		}
		const each = "600 per 1h0m0s, burst 3"
		for key, want := range map[string]limitedKey{
			"each": {Waiting: 2, Running: 2, LimitRunning: 2, LimitRate: each},
			"own":  {Waiting: 3, Running: 1, LimitRunning: 1, OwnRunning: true, LimitRate: each},
			"slow": {Waiting: 3, Running: 1, LimitRunning: 5, OwnRunning: true, LimitRate: "1 per 1h0m0s, burst 1", OwnRate: true},
		} {
			want.Key, want.LimitedUntil = key, keys[key].LimitedUntil
			require.Equal(t, want, keys[key])
		}
		text := get(t, h, link("keys", "topic", "report")).Body.String()
		require.Contains(t, text, `<td class="n" data-label="Running">2 of 2</td>`)
		require.Contains(t, text, `1 of 1 <span class="none">own</span>`)
		require.Equal(t, 2, strings.Count(text, "as many run as may"))
		require.Equal(t, 3, strings.Count(text, `class="status limited"`))
		text = get(t, h, link("topic", "topic", "report")).Body.String()
		require.Contains(t, text, "<dt>at most running per key</dt><dd>2</dd>")
		require.Contains(t, text, `<dt>rate per key</dt><dd class="text">`+each+`</dd>`)
		require.Contains(t, text, link("keys", "topic", "report")[1:])
		stats, err := q.Inspector.Stats(ctx, "report")
		require.NoError(t, err)
		require.Zero(t, stats[0].Keys)
	})
}

type limitedKey struct {
	Key          string
	Waiting      int64
	Running      int64
	LimitRunning int       `json:"limit_running"`
	LimitRate    string    `json:"limit_rate"`
	OwnRunning   bool      `json:"own_limit_running"`
	OwnRate      bool      `json:"own_limit_rate"`
	LimitedUntil time.Time `json:"limited_until"`
}
