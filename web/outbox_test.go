package web_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/web"
)

// Outboxes are on the page of Redis, and what is wrong with them is on the overview. What an error
// says is nowhere, and all viewers share what was read.
func TestOutboxes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		one := func(s web.OutboxStats, err error) func(context.Context) (web.OutboxStats, error) {
			return func(ctx context.Context) (web.OutboxStats, error) {
				calls++
				deadline, ok := ctx.Deadline()
				require.True(t, ok)
				require.Equal(t, 2*time.Second, time.Until(deadline))
				return s, err
			}
		}
		q := world(t)
		h := page(t, q,
			web.Outbox("fine <b>", one(web.OutboxStats{Rows: 3, Oldest: time.Second, Later: 12}, nil)),
			web.Outbox("slow", one(web.OutboxStats{Rows: 41_000, Oldest: 90 * time.Second, Dead: 1}, nil)),
			web.Outbox("down", one(web.OutboxStats{}, errors.New("dial tcp: password=secret"))),
			web.Outbox("wild", func(context.Context) (web.OutboxStats, error) { panic("wild") }),
		)
		overview := get(t, h, "/topics")
		require.Equal(t, http.StatusOK, overview.Code)
		text := overview.Body.String()
		require.Contains(t, text, "Outbox slow: 41,000 rows wait, the oldest for 1m 30s. Does a relay run?")
		require.Contains(t, text, "Outbox slow: Redis has refused 1 row for good.")
		require.Contains(t, text, "Outbox down: its database does not answer.")
		require.Contains(t, text, "Outbox wild: its database does not answer.")
		require.NotContains(t, text, "Outbox fine")
		require.NotContains(t, text, "secret")
		shown := get(t, h, "/redis").Body.String()
		require.Contains(t, shown, "fine &lt;b&gt;")
		require.NotContains(t, shown, "secret")

		var answer struct {
			Outboxes []struct {
				Name   string
				Rows   int64
				Oldest float64 `json:"oldest_seconds"`
				Later  int64
				Down   bool
			}
		}
		require.NoError(t, json.Unmarshal(get(t, h, "/redis.json").Body.Bytes(), &answer))
		require.Len(t, answer.Outboxes, 4)
		require.EqualValues(t, 12, answer.Outboxes[0].Later)
		require.EqualValues(t, 90, answer.Outboxes[1].Oldest)
		require.True(t, answer.Outboxes[2].Down)
		require.Equal(t, 3, calls)
		time.Sleep(11 * time.Second)
		get(t, h, "/topics")
		require.Equal(t, 6, calls)
	})
}

func TestInvalidOutboxes(t *testing.T) {
	q := world(t)
	fine := func(context.Context) (web.OutboxStats, error) { return web.OutboxStats{}, nil }
	for name, opts := range map[string][]web.Option{
		"name":     {web.Outbox("", fine)},
		"bytes":    {web.Outbox("\xff", fine)},
		"function": {web.Outbox("a", nil)},
		"twice":    {web.Outbox("a", fine), web.Outbox("a", fine)},
	} {
		_, err := web.New(q.Inspector, opts...)
		require.ErrorIs(t, err, delayq.ErrInvalid, name)
		require.ErrorContains(t, err, "Outbox(", name)
	}
	var many []web.Option
	for i := range 21 {
		many = append(many, web.Outbox(string(rune('a'+i)), fine))
	}
	_, err := web.New(q.Inspector, many...)
	require.ErrorContains(t, err, "there are 20 already")
}
