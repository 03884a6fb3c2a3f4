package hand

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/script"
)

// TryPartition is one call of the partition script by a caller that has read the map expected, and
// the number of changes of the settings ("": any).
func (h *Hand) TryPartition(expected, next, changes string) (script.Reply, error) {
	return h.Run(script.Partition, h.Series.Next(), expected, next, changes, script.ControlChannel(h.Prefix()), h.Keys.Topic, "set", "")
}

// TryMap is one call of the part_map script.
func (h *Hand) TryMap() (script.Reply, error) { return h.Run(script.PartMap) }

// Map returns the map of the topic.
func (h *Hand) Map() string {
	h.T.Helper()
	r, err := h.TryMap()
	require.NoError(h.T, err)
	return r.Text(2)
}

// TryClose is one call of the part_close script.
func (h *Hand) TryClose() (script.Reply, error) { return h.TrySeal("") }

// TrySeal is TryClose, and gives the place a seal.
func (h *Hand) TrySeal(seal string) (script.Reply, error) {
	return h.Run(script.PartClose, h.Series.Next(), seal, 0)
}

// CloseByKey closes the topic, but for the jobs of keys that it has, and reports whether it was
// open.
func (h *Hand) CloseByKey() bool {
	h.T.Helper()
	r, err := h.Run(script.PartClose, h.Series.Next(), "", 1)
	require.NoError(h.T, err)
	return r.Number(2) == 1
}

// TryKeys is one call of the part_keys script, which looks at about so many jobs. It returns its
// answer.
func (h *Hand) TryKeys(count int) (string, error) {
	r, err := h.Run(script.PartKeys, count)
	if err != nil {
		return "", err
	}
	return r.Text(2), nil
}

// Pass looks which keys stay, until a pass has ended.
func (h *Hand) Pass() {
	h.T.Helper()
	for {
		answer, err := h.TryKeys(100)
		require.NoError(h.T, err)
		if answer != "more" {
			return
		}
	}
}

// Close closes the topic, and reports whether it was open.
func (h *Hand) Close() bool {
	h.T.Helper()
	r, err := h.TryClose()
	require.NoError(h.T, err)
	return r.Number(2) == 1
}

// TryEmpty is one call of the part_empty script.
func (h *Hand) TryEmpty() (script.Reply, error) { return h.Run(script.PartEmpty) }

// Empty reports whether the topic is closed and has nothing left.
func (h *Hand) Empty() bool {
	h.T.Helper()
	r, err := h.TryEmpty()
	require.NoError(h.T, err)
	return r.Number(2) == 1 && r.Number(4) == 0
}

// TryRetire is one call of the part_retire script by a caller that knows a map. seen says that it
// has seen all places of the generation closed and empty.
func (h *Hand) TryRetire(expected string, generation int, seen bool, apart time.Duration) (script.Reply, error) {
	return h.TryLeave(expected, generation, seen, apart, "", "")
}

// TryLeave is TryRetire by a caller that has read the seal and the counters of all places.
func (h *Hand) TryLeave(expected string, generation int, seen bool, apart time.Duration, seal, sums string) (script.Reply, error) {
	verdict := 0
	if seen {
		verdict = 1
	}
	return h.Run(script.PartRetire, h.Series.Next(), expected, generation, verdict, apart.Milliseconds(),
		script.ControlChannel(h.Prefix()), h.Keys.Topic, seal, sums)
}

// HastenParts lets it be longer ago that generations were seen empty.
func (h *Hand) HastenParts(d time.Duration) {
	h.T.Helper()
	ctx := context.Background()
	fields, err := h.RDB.HGetAll(ctx, h.Keys.Parts).Result()
	require.NoError(h.T, err)
	for field, text := range fields {
		if strings.HasPrefix(field, "empty:") {
			at, err := strconv.ParseInt(text, 10, 64)
			require.NoError(h.T, err)
			require.NoError(h.T, h.RDB.HSet(ctx, h.Keys.Parts, field, at-d.Milliseconds()).Err())
		}
	}
}

// TryShare is one call of the limits script. shared has the limits of all places of the topic, if
// flow is the share of this one.
func (h *Hand) TryShare(flow, shared, verb string) (script.Reply, error) {
	return h.Run(script.Limits, h.Series.Next(), flow, script.ControlChannel(h.Prefix()), h.Keys.Topic, shared, verb)
}

// TryDivide is one call of the part_share script by a server that has read the fields flow and
// shared.
func (h *Hand) TryDivide(hadFlow, hadShared, flow, shared string) (script.Reply, error) {
	return h.Run(script.PartShare, hadFlow, hadShared, flow, shared, script.ControlChannel(h.Prefix()), h.Keys.Topic)
}

// TryCancelEach is one call of the cancel script about several jobs. A job is its ID, and what
// follows it.
func (h *Hand) TryCancelEach(jobs ...[2]string) (script.Reply, error) {
	args := []any{h.Series.Next(), script.ControlChannel(h.Prefix()), h.Keys.Topic}
	for _, job := range jobs {
		args = append(args, job[0], job[1])
	}
	return h.Run(script.Cancel, args...)
}

// TryGet is one call of the get script.
func (h *Hand) TryGet(ids ...string) (script.Reply, error) {
	args := []any{script.CallBytes, -1}
	for _, id := range ids {
		args = append(args, id)
	}
	return h.Run(script.Get, args...)
}

// Elsewhere is the number of the value of get that says that the topic is a closed place.
const Elsewhere = 13

// TryDelete is one call of the delete script.
func (h *Hand) TryDelete(id string) (script.Reply, error) {
	return h.Run(script.Delete, h.Series.Next(), id, "")
}
