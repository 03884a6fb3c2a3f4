package outbox

import (
	"encoding/binary"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// decodeBefore reads a plan as the release did that had no seals.
func decodeBefore(plan []byte) (rows []stored, err error) {
	if plan[0] != 2 {
		return nil, errPlan
	}
	plan = plan[1:]
	for range 3 {
		_, n := binary.Uvarint(plan)
		plan = plan[n:]
	}
	last := int64(0)
	for len(plan) > 0 {
		step, n := binary.Uvarint(plan)
		if n <= 0 || len(rows) == 1000 {
			return nil, errPlan
		}
		last += int64(step >> 1)
		rows, plan = append(rows, stored{seq: last, later: step&1 == 1}), plan[n:]
	}
	return rows, nil
}

// A relay of the release before, which has no seals, reads a plan of this one: its rows, and the
// key of one that is not there.
func TestPlansOfThisReleaseAreReadByTheOneBefore(t *testing.T) {
	h, _ := newHolding(t)
	for i := range 1200 {
		h.enqueue(t, strconv.Itoa(i), 1)
	}
	require.NoError(t, h.next(t.Context(), new(ending)))
	require.Len(t, h.plan, mostRows)
	var plan []byte
	require.NoError(t, h.db.QueryRow("SELECT plan FROM delayq_outbox_shards").Scan(&plan))
	rows, err := decodeBefore(plan)
	require.NoError(t, err)
	require.Len(t, rows, mostRows+1)
	for i, row := range h.plan {
		require.Equal(t, row.seq, rows[i].seq)
	}
	var there int
	last := rows[mostRows].seq
	require.NoError(t, h.db.QueryRow("SELECT COUNT(*) FROM delayq_outbox WHERE seq >= ?", last).Scan(&there))
	require.Zero(t, there)
	require.GreaterOrEqual(t, last, int64(sealed))
}

// A plan of the release before is sent on as it was begun: what Redis has had of it is not made
// again.
func TestPlansOfTheReleaseBeforeAreContinued(t *testing.T) {
	h, rdb := newHolding(t)
	for _, id := range []string{"a", "b"} {
		h.enqueue(t, id, 1)
	}
	require.NoError(t, h.next(t.Context(), new(ending)))
	// As that release has left it, after it has sent the plan.
	plan := encodePlan(marker{}, h.plan, sealed)
	plan = plan[:len(plan)-len(binary.AppendUvarint(nil, uint64(sealed-h.plan[1].seq)<<1))]
	_, err := h.db.Exec("UPDATE delayq_outbox_shards SET plan = ?", plan)
	require.NoError(t, err)
	h.seal = 0
	_, err = h.send(t.Context())
	require.NoError(t, err)
	client := delayq.NewClient(rdb)
	for _, id := range []string{"a", "b"} {
		_, err := client.Dequeue(t.Context(), "topic", id) // they have finished
		require.NoError(t, err)
	}
	held, _, err := h.acquire(t.Context())
	require.NoError(t, err)
	require.True(t, held)
	require.Zero(t, h.seal)
	require.Len(t, h.plan, 2)
	end, err := h.send(t.Context())
	require.NoError(t, err)
	require.NoError(t, h.next(t.Context(), end))
	require.Empty(t, h.plan)
	require.Empty(t, rdb.HKeys(t.Context(), "delayq:{topic}:pool").Val())
	require.Equal(t, "2", rdb.HGet(t.Context(), "delayq:{topic}:stats", "enqueued").Val())
}
