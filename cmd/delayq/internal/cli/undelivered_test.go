package cli

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// refused stores what is kept of a job that a run of a topic has handed over in vain.
func (w *world) refused(topic string, fields map[string]any) {
	w.Helper()
	text, err := json.Marshal(fields)
	require.NoError(w, err)
	require.NoError(w, w.RDB.LPush(w.Context(), "q:{"+topic+"}:all:undelivered", text).Err())
}

// Jobs that were refused are listed, also those of which little can be read. Jobs that are on their
// way are shown with their topic, with the age of the oldest one.
func TestGoldenUndelivered(t *testing.T) {
	inWorld(t, func(w *world) {
		w.show("undelivered", "mail:welcome")
		w.show("undelivered", "mail:welcome", "-o", "json")
		at := time.Now().UnixMilli()
		w.refused("mail:welcome", map[string]any{"at": at - 60_000, "from": "user-1", "topic": "report:daily", "id": "r-1", "reason": "duplicate: a ready job has the ID"})
		w.refused("mail:welcome", map[string]any{"at": at, "from": "", "topic": "", "id": "", "reason": "the parcel is damaged: x"})
		w.refused("mail:welcome", map[string]any{"at": "soon", "from": 7, "id": "a b\n"})
		require.NoError(w, w.RDB.LPush(w.Context(), "q:{mail:welcome}:all:undelivered", "{\"at\":").Err())
		w.every("undelivered", "mail:welcome")
		for n, age := range []int64{12_000, 1_000, 2_000} {
			member := fmt.Sprintf("0creport:daily%014x%013dx", n+1, at-age)
			require.NoError(w, w.RDB.ZAdd(w.Context(), "q:{mail:welcome}:all:parcels", redis.Z{Member: member}).Err())
		}
		w.show("topic", "mail:welcome", "--over", "0s", "--steps", "1")
		w.show("topic", "mail:welcome", "--over", "0s", "--steps", "1", "-o", "json")
		w.show("topics", "-o", "wide")
		w.show("stats", "-o", "wide")
		w.golden("undelivered")
	})
}
