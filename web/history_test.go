package web_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A topic shows what happened in it, as charts with a table and as JSON.
func TestHistoryOfATopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := world(t)
		h := page(t, q)
		type answer struct {
			Histories []struct {
				Name     string
				From     time.Time
				Step     float64 `json:"step_seconds"`
				Runs     int64
				Outcomes map[string][]int64
				Lateness map[string][]*float64 `json:"lateness_seconds"`
				RunTime  map[string][]*float64 `json:"run_time_seconds"`
			}
			Error string `json:"histories_error"`
		}
		ask := func(topic string) (a answer) {
			w := get(t, h, link("topic.json", "topic", topic))
			require.Equal(t, http.StatusOK, w.Code)
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a))
			return a
		}
		got := ask("mail:welcome")
		require.Len(t, got.Histories, 3)
		for i, one := range got.Histories {
			n := []int{60, 72, 60}[i]
			require.Equal(t, []string{"hour", "six", "month"}[i], one.Name)
			require.InDelta(t, []float64{60, 300, 12 * 3600}[i], one.Step, 0)
			require.EqualValues(t, 5, one.Runs)
			require.Len(t, one.Outcomes, 1)
			require.Len(t, one.Outcomes["buried"], n)
			require.Len(t, one.Lateness["p50"], n)
			require.Len(t, one.RunTime["p99"], n)
			require.NotNil(t, one.Lateness["p99"][n-1], "the last step is the present one")
			require.Nil(t, one.Lateness["p99"][0])
			require.True(t, one.From.Add(time.Duration(float64(n)*one.Step)*time.Second).After(time.Now()))
		}
		require.Empty(t, ask("order:cancel").Histories, "nothing has run")

		text := get(t, h, link("topic", "topic", "mail:welcome")).Body.String()
		require.Contains(t, text, `aria-label="Last 6 hours: 5 runs ended, 5 of them failed"`)
		require.Contains(t, text, "buried 5</title>")
		require.Less(t, len(text), 60_000)

		// What cannot be read leaves the rest of the page as it is.
		key := q.Inspector.Prefix() + ":{report}:hours"
		q.Miniredis.Del(key)
		require.NoError(t, q.Miniredis.Set(key, "a slip"))
		got = ask("report")
		require.Empty(t, got.Histories)
		require.Contains(t, got.Error, "WRONGTYPE")
		text = get(t, h, link("topic", "topic", "report")).Body.String()
		require.Contains(t, text, "WRONGTYPE")
		require.Contains(t, text, "Forecast")
		require.False(t, strings.Contains(text, key), fmt.Sprintf("%s is shown", key))
	})
}
