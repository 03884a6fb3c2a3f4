package web_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/delayq/delayq/web"
)

// The page of a topic tells how many jobs its runs have handed over and that are on their way, and
// lists those that were refused. Nothing of that is markup.
func TestJobsThatWereHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := world(t)
		key := func(name string) string { return q.Prefix + ":{report}:all:" + name }
		h := page(t, q, web.Every(time.Second))
		target := link("topic", "topic", "report")
		before := get(t, h, target).Body.String()
		require.NotContains(t, before, "on their way")
		require.NotContains(t, before, "Handed over in vain")

		now := q.Now()
		for n, age := range []time.Duration{12 * time.Second, time.Second, time.Second} {
			member := fmt.Sprintf("06target%014x%013dx", n+1, now.Add(-age).UnixMilli())
			require.NoError(t, q.Redis.ZAdd(t.Context(), key("parcels"), redis.Z{Member: member}).Err())
		}
		entry, err := json.Marshal(map[string]any{"at": now.UnixMilli(), "from": evilID, "topic": "refund <b>/poll", "id": evilID, "reason": evilID})
		require.NoError(t, err)
		require.NoError(t, q.Redis.RPush(t.Context(), key("undelivered"), entry, "<script>alert(9)</script>", `{"topic":"elsewhere"}`).Err())
		require.NoError(t, q.Redis.HSet(t.Context(), q.Prefix+":{report}:stats", "undelivered", 3).Err())

		time.Sleep(2 * time.Second) // until it is read again
		w := get(t, h, target)
		require.Equal(t, http.StatusOK, w.Code)
		text := w.Body.String()
		require.Contains(t, text, "handed over, on their way</dt><dd>3<small> oldest 12")
		require.Contains(t, text, "Handed over in vain</h2>")
		require.Contains(t, text, "Neither payloads nor")
		require.Contains(t, text, `>refund &lt;b&gt;/poll</a>`)
		require.Contains(t, text, "the entry is damaged: &lt;script&gt;")
		root, err := html.Parse(strings.NewReader(text))
		require.NoError(t, err)
		inert(t, "topic", root)
		chinese := get(t, h, target, func(r *http.Request) { r.Header.Set("Accept-Language", "zh-CN") }).Body.String()
		require.Contains(t, chinese, "移交未成功</h2>")

		var answer struct {
			Parcels     int
			Oldest      time.Time `json:"oldest_parcel"`
			Undelivered []struct{ From, Topic, ID, Reason string }
		}
		require.NoError(t, json.Unmarshal(get(t, h, link("topic.json", "topic", "report")).Body.Bytes(), &answer))
		require.Equal(t, 3, answer.Parcels)
		require.Equal(t, now.Add(-12*time.Second).UnixMilli(), answer.Oldest.UnixMilli())
		require.Len(t, answer.Undelivered, 3)
		require.Equal(t, evilID, answer.Undelivered[0].ID)
		require.Equal(t, "elsewhere", answer.Undelivered[2].Topic)

		// A key of a wrong type costs the list, not the page.
		require.NoError(t, q.Redis.Set(t.Context(), key("undelivered"), "x", 0).Err())
		time.Sleep(2 * time.Second)
		w = get(t, h, target)
		require.Equal(t, http.StatusOK, w.Code)
		require.Contains(t, w.Body.String(), "Handed over in vain · ")
	})
}
