package faults_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/rig"
)

// Workers are killed while stages of plans run. Each stage of each plan is run to its end once, in
// the order of the stages and not before its time, with attempts of its own.
func TestKilledWorkersRunEachStage(t *testing.T) {
	b := newBench(t)
	const kills, plans, stages = 4, 5, 6 // plans for each kill
	times := map[string][]time.Time{}
	workers := []*rig.Worker{b.worker("w1"), b.worker("w2")}
	for kill := range kills {
		from := rig.Mono()
		for i := range plans {
			id := fmt.Sprintf("plan%d-%d", kill, i)
			for stage := range stages {
				times[id] = append(times[id], time.Now().Add(time.Duration(stage)*400*time.Millisecond))
			}
			payload := fmt.Appendf(nil, `{"inc":%d,"steps":["hang:300ms"]}`, kill*plans+i+1)
			_, err := b.client.Enqueue(t.Context(), "t", id, payload, delayq.ProcessAtEach(times[id]...))
			require.NoError(t, err)
		}
		w := b.busy(workers, 1, "start", from, is(rig.OpStart, ""))
		require.NoError(t, w.Kill())
		require.NoError(t, w.Start())
		slices.Reverse(workers)
	}
	b.drained(patient)

	// A kill can come between the end of a stage in Redis and the note of it in the history, but
	// each stage has a nonce of its own.
	begun, nonces, ended, again := map[string][]string{}, map[string]string{}, map[string]int{}, false
	for _, e := range b.events(func(e rig.Event) bool { return e.Op == rig.OpStart || e.Op == rig.OpSettled }) {
		run := fmt.Sprint(e.ID, " ", e.Started)
		switch {
		case e.Op == rig.OpStart:
			nonces[run] = e.Nonce
			if !slices.Contains(begun[e.ID], e.Nonce) {
				begun[e.ID] = append(begun[e.ID], e.Nonce)
			}
			stage := slices.Index(begun[e.ID], e.Nonce)
			require.Equal(t, len(begun[e.ID])-1, stage, "%s goes back to stage %d", e.ID, stage+1)
			require.Less(t, stage, stages)
			require.GreaterOrEqual(t, e.Started, times[e.ID][stage].UnixMicro()-1000, "%s begins stage %d", e.ID, stage+1)
			require.Zero(t, ended[e.Nonce], "%s runs stage %d after its end", e.ID, stage+1)
			again = again || e.Attempt > 1
		case e.Result == "again" || e.Result == "acked":
			ended[nonces[run]]++
			require.Equal(t, 1, ended[nonces[run]], "%s ends a stage twice", e.ID)
		}
	}
	require.True(t, again, "a kill cut a run off")
	for id := range times {
		require.Len(t, begun[id], stages, id)
	}
}
