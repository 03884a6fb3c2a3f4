package faults_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/rig"
)

// TestKillAtTheSlot (N1, N2): three servers fire one schedule with a slot in every second. A
// hundred times one of them is killed within 50 ms of a slot, and another process takes its place.
// Every slot has exactly one job, none is missed, and none is late by more than a tick.
func TestKillAtTheSlot(t *testing.T) {
	if testing.Short() {
		t.Skip("takes two minutes")
	}
	b := newBench(t)
	ctx := t.Context()
	const every, kills = time.Second, 100
	workers := make([]*rig.Worker, 3)
	for i := range workers {
		workers[i] = b.worker(fmt.Sprint("w", i))
	}
	b.await("workers", patient, func([]rig.Event) bool {
		all, err := delayq.NewInspector(b.direct, delayq.Prefix(b.prefix)).Servers(ctx)
		return err == nil && len(all) == len(workers)
	})
	client := delayq.NewClient(b.direct, delayq.Prefix(b.prefix))
	insp := delayq.NewInspector(b.direct, delayq.Prefix(b.prefix))
	require.NoError(t, client.Schedule(ctx, "t", "s", delayq.Every(every), []byte("{}"), delayq.OverlapAllow, delayq.MissedCatchUp(10)))
	info, err := insp.Schedule(ctx, "t", "s")
	require.NoError(t, err)
	first := info.NextSlot

	random := rand.New(rand.NewPCG(1, uint64(first.UnixMilli())))
	for n := range kills {
		slot := first.Add(time.Duration(n+1) * every)
		at := slot.Add(time.Duration(random.Int64N(int64(100*time.Millisecond))) - 50*time.Millisecond)
		time.Sleep(time.Until(at)) // this is the clock of Redis: it runs on this machine
		w := workers[random.IntN(len(workers))]
		require.NoError(t, w.Kill())
		b.fault("kill")()
		require.NoError(t, w.Start())
	}
	last := first.Add((kills + 2) * every)
	time.Sleep(time.Until(last.Add(every / 2)))
	require.NoError(t, client.PauseSchedule(ctx, "t", "s"))
	info, err = insp.Schedule(ctx, "t", "s")
	require.NoError(t, err)
	require.Zero(t, info.Missed)
	require.Zero(t, info.Skipped)
	require.EqualValues(t, int(last.Sub(first)/every)+1, info.Fired)
	b.await("the last run", patient, func(events []rig.Event) bool {
		return len(filter(events, func(e rig.Event) bool { return e.Op == rig.OpStart && e.ID == info.LastJobID })) > 0
	})

	started := map[int64][]rig.Event{} // first attempts, by slot
	worst, sum := time.Duration(0), time.Duration(0)
	for _, e := range b.events(is(rig.OpStart, "")) {
		ms, err := strconv.ParseInt(strings.TrimPrefix(e.ID, "s@"), 10, 64)
		require.NoError(t, err, e.ID)
		if e.Attempt == 1 {
			started[ms] = append(started[ms], e)
			late := time.Duration(e.Started-ms*1000) * time.Microsecond
			worst, sum = max(worst, late), sum+late
		}
	}
	for slot := first; !slot.After(last); slot = slot.Add(every) {
		// A run whose server was killed right after the take is attempt 2 when it is seen first,
		// and the take may have got no further.
		if len(started[slot.UnixMilli()]) == 0 {
			again := b.events(func(e rig.Event) bool {
				return e.Op == rig.OpStart && e.ID == fmt.Sprint("s@", slot.UnixMilli()) && e.Attempt > 1
			})
			require.NotEmpty(t, again, "slot %v has no job", slot)
		}
		nonces := map[string]bool{}
		for _, e := range b.events(func(e rig.Event) bool { return e.Op == rig.OpStart && e.ID == fmt.Sprint("s@", slot.UnixMilli()) }) {
			nonces[e.Nonce] = true
		}
		require.Len(t, nonces, 1, "jobs of slot %v", slot)
		delete(started, slot.UnixMilli())
	}
	require.Empty(t, started, "jobs that are of no slot")
	t.Logf("%d kills at %d slots: one job each; first attempts started %v late on average, %v at most",
		kills, info.Fired, sum/time.Duration(info.Fired), worst)
}
