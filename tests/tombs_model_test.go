package tests

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// A tombModel is what a topic of few IDs must be like.
type tombModel struct {
	state map[string]delayq.State // of each job
	tombs map[string]time.Time    // when each ID is free
	held  map[string]hand.Held
}

// enqueue returns what becomes of a new job, and does so.
func (m *tombModel) enqueue(now time.Time, id string, replace, replaceDead, later bool, window time.Duration) delayq.State {
	switch was := m.state[id]; {
	case was == "" && m.tombs[id].After(now):
		return delayq.StateTomb
	case was != "" && !replace && (!replaceDead || was != delayq.StateDead):
		return was
	}
	m.state[id] = delayq.StateReady
	if later {
		m.state[id] = delayq.StateScheduled
	}
	delete(m.held, id)
	if till := now.Add(window); window > 0 && till.After(m.tombs[id]) {
		m.tombs[id] = till
	}
	return ""
}

// Random calls about few IDs, with jobs that end in all ways while time passes: each call has the
// outcome of the model.
func TestTombsAgainstAModel(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) { playTombs(b, seed) })
		})
	}
}

func playTombs(b *queuetest.Bubble, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	m := &tombModel{map[string]delayq.State{}, map[string]time.Time{}, map[string]hand.Held{}}
	h := hand.New(b.T, b.RDB, queuetest.Prefix, "t")
	maybe := func(n int) bool { return random.IntN(n) == 0 }
	for step := range redistest.Size(1000) {
		id, now := string(rune('a'+random.IntN(4))), time.Now()
		state := m.state[id]
		switch random.IntN(5) {
		case 0, 1:
			replace, replaceDead, later, window := maybe(4), maybe(4), maybe(2), time.Duration(0)
			var opts []delayq.JobOption
			add := func(given bool, opt delayq.JobOption) {
				if given {
					opts = append(opts, opt)
				}
			}
			if maybe(2) {
				window = time.Duration(1+random.IntN(90)) * time.Second
			}
			add(window > 0, delayq.UniqueFor(max(window, time.Second)))
			add(replaceDead && !replace, delayq.ReplaceDead())
			add(replace, delayq.Replace())
			add(later, delayq.ProcessIn(time.Hour))
			add(maybe(3), delayq.Key("k"))
			want := m.enqueue(now, id, replace, replaceDead, later, window)
			_, err := b.Client.Enqueue(b.Context(), "t", id, nil, opts...)
			var twin *delayq.DuplicateError
			if errors.As(err, &twin) {
				require.Equal(b, want, twin.State, "step %d, %s", step, id)
				require.True(b, want != delayq.StateTomb || twin.Until.Equal(m.tombs[id]), "step %d, %s", step, id)
				break
			}
			require.NoError(b, err, step)
			require.Empty(b, want, "step %d, %s", step, id)
		case 2:
			var opts []delayq.DequeueOption
			if maybe(2) {
				d := time.Duration(random.IntN(60)) * time.Second
				opts = append(opts, delayq.Tombstone(d))
				m.tombs[id] = now.Add(d)
			}
			was, err := b.Client.Dequeue(b.Context(), "t", id, opts...)
			require.Equal(b, state, was, "step %d, %s", step, id)
			require.Equal(b, state == "", errors.Is(err, delayq.ErrNotFound))
			delete(m.state, id)
			delete(m.held, id)
		case 3:
			if state == delayq.StateRunning {
				held := m.held[id]
				switch random.IntN(3) {
				case 0:
					require.Equal(b, "o", h.Ack(held))
					delete(m.state, id)
				case 1:
					require.Equal(b, "o", h.Retry(time.Hour, held))
					m.state[id] = delayq.StateScheduled
				case 2:
					require.Equal(b, "o", h.Bury(held))
					m.state[id] = delayq.StateDead
				}
				delete(m.held, id)
				break
			}
			for _, held := range h.Take(4, 100*time.Hour) {
				require.Equal(b, delayq.StateReady, m.state[held.ID])
				m.state[held.ID], m.held[held.ID] = delayq.StateRunning, held
			}
		case 4:
			b.Pass(time.Duration(random.IntN(20_000)) * time.Millisecond)
			if maybe(5) {
				_, err := h.TryPrune(1000, 1000*time.Hour, 500)
				require.NoError(b, err)
			}
		}
	}
	left := b.RDB.ZCard(b.Context(), queuetest.Prefix+":{t}:all:tombs").Val()
	require.LessOrEqual(b, left, int64(4))
}
