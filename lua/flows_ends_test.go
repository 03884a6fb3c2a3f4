package lua_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/script"
)

// readFlow returns what flow_read says about a flow: its value without the name, and the first
// letters of the states of its steps.
func readFlow(t *testing.T, h *Hand, id string) (value, states string) {
	t.Helper()
	r, err := h.Run(script.FlowRead, id, 0, 100)
	require.NoError(t, err)
	for _, state := range r.List(4).Texts() {
		states += state[:1]
	}
	return r.Text(2), states
}

// stepField is the field of a step of a flow in steps, and what follows it for its state (s), its
// parcel (r) or its output (o).
func stepField(f *hand.Flow, n int, what string) string {
	return fmt.Sprintf("%s%08x%s", f.Name, n, what)
}

// A flow that fails cancels its other steps at once, and not only when its last step is buried.
func TestFailedFlowCancelsItsSteps(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		all := topicsOf(h, "a", "b")
		f := newFlow([]string{"a", "b"}, nil, nil, []int{1})
		require.NoError(t, just(h.TryStart(f)))
		relay(t, all)
		require.EqualValues(t, 1, all["b"].RDB.HLen(t.Context(), all["b"].Keys.Pool).Val())
		require.NoError(t, just(h.TryArrive("1000000001", h.Keys.Receipt("ends"), arrived(f, 0, "dwhy"))))
		relay(t, all)
		require.Zero(t, all["b"].RDB.Exists(t.Context(), all["b"].Keys.Pool).Val())
		value, states := readFlow(t, h, "last")
		require.Contains(t, value, "f - 3 0 3 0 ")
		require.Equal(t, "dck", states)
	})
}

// A step whose parcel is lost has ended badly when it is to start.
func TestStepWithoutAParcelIsGone(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		f := newFlow([]string{"a"}, nil, []int{0}, []int{1})
		require.NoError(t, just(h.TryStart(f)))
		require.EqualValues(t, 1, h.RDB.HDel(t.Context(), h.Keys.Steps, stepField(f, 1, "r")).Val())
		r, err := h.TryArrive("1000000001", h.Keys.Receipt("ends"), arrived(f, 0, "o2:{}"))
		require.NoError(t, err)
		require.Equal(t, []string{"last"}, r.List(2).Texts())
		value, states := readFlow(t, h, "last")
		require.Contains(t, value, "f - 3 0 2 0 ")
		require.Equal(t, "ogk", states)
		_, text, err := h.TryBegin("last", f.Name)
		require.NoError(t, err)
		require.JSONEq(t, `{"step":1,"topic":"a","id":"stepb","outcome":"g","text":"its parcel is lost"}`, text)
	})
}

// The outputs of a flow have at most 1 MiB, and each of them at most 64 KiB.
func TestFlowKeepsAMebibyteOfOutputs(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		f := newFlow([]string{"a"}, make([][]int, 18)...)
		require.NoError(t, just(h.TryStart(f)))
		for n := range f.Steps {
			output := strings.Repeat("x", 65536)
			if n == 17 {
				output = ""
			}
			require.NoError(t, just(h.TryArrive(strconv.Itoa(1000000001+n), h.Keys.Receipt("ends"), arrived(f, n, "o2:{}"+output))))
		}
		for n := range f.Steps {
			require.Equal(t, n < 16, h.RDB.HExists(t.Context(), h.Keys.Steps, stepField(f, n, "o")).Val(), n)
		}
		value, _ := readFlow(t, h, "last")
		require.Contains(t, value, "r - 18 0 0 1048576 ")
	})
}

// A flow whose last step a program of v0.1.0 has ended is deleted when the next one of that ID
// starts, also if its link is lost.
func TestStartDeletesTheFlowBefore(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				all := topicsOf(h, "a")
				f := newFlow([]string{"a"}, nil, []int{0})
				require.NoError(t, just(h.TryStart(f)))
				relay(t, all)
				require.NoError(t, h.RDB.HDel(t.Context(), h.Keys.Pool, "last").Err())
				require.NoError(t, h.RDB.ZRem(t.Context(), h.Keys.Bucket, "last").Err())
				if lost {
					require.EqualValues(t, 1, h.RDB.HDel(t.Context(), h.Keys.Notes, "llast").Val())
				}
				g := newFlow([]string{"a"}, nil)
				g.Name, g.Steps[0].ID = "87654321", "other"
				r, err := h.TryStart(g)
				require.NoError(t, err)
				require.Empty(t, r.Text(2))
				relay(t, all)
				for _, field := range h.RDB.HKeys(t.Context(), h.Keys.Steps).Val() {
					require.True(t, strings.HasPrefix(field, g.Name), field)
				}
				require.Equal(t, []string{"other"}, all["a"].RDB.HKeys(t.Context(), all["a"].Keys.Pool).Val())
				_, states := readFlow(t, h, "last")
				require.Equal(t, "s", states)
			})
		})
	}
}

// A call of arrive leaves ends to the next one when it has ended or started 1,000 steps, looked at
// 4,000, or stored 1 MiB.
func TestArriveIsBounded(t *testing.T) {
	// fan is a flow of which some steps wait for the first one, and for some more.
	fan := func(wait int, more ...int) [][]int {
		after := make([][]int, 2+wait)
		for i := range wait {
			after[2+i] = append([]int{0}, more...)
		}
		return after
	}
	for name, c := range map[string]struct {
		after  [][]int
		output int
		flows  int
		ends   int // of each flow
		most   int64
	}{
		"starts":  {fan(600), 0, 3, 1, 2},
		"looks":   {fan(998, 1), 0, 6, 1, 5}, // 999 each
		"bytes":   {make([][]int, 10), 65536, 2, 10, 16},
		"ends":    {make([][]int, 1000), 0, 1, 500, 500},
		"in full": {fan(100), 10, 3, 2, 6},
	} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				var ends []string
				for i := range c.flows {
					f := newFlow([]string{"a"}, c.after...)
					for n := range f.Steps {
						f.Steps[n].ID = strconv.Itoa(n)
					}
					f.ID, f.Name = fmt.Sprint("last", i), fmt.Sprintf("%08d", i)
					require.NoError(t, just(h.TryStart(f)))
					for n := range c.ends {
						ends = append(ends, arrived(f, n, "o2:{}"+strings.Repeat("x", c.output)))
					}
				}
				r, err := h.TryArrive("1000000001", h.Keys.Receipt("ends"), ends...)
				require.NoError(t, err)
				require.Equal(t, c.most, r.Number(3))
			})
		})
	}
}

// A sweep of a dead flow skips what waits, cancels what runs, and leaves what has ended.
func TestSweepEndsEachStep(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		f := newFlow([]string{"a"}, nil, nil, []int{1})
		require.NoError(t, just(h.TryStart(f)))
		require.NoError(t, just(h.TryArrive("1000000001", h.Keys.Receipt("ends"), arrived(f, 0, "o2:{}out"))))
		require.NoError(t, just(h.TrySweep("last", f.Name, "d", 0)))
		value, states := readFlow(t, h, "last")
		require.Contains(t, value, "d - 3 0 2 3 ")
		require.Equal(t, "ock", states)
		require.False(t, h.RDB.HExists(t.Context(), h.Keys.Steps, stepField(f, 2, "r")).Val())
		require.NoError(t, just(h.TryArrive("1000000002", h.Keys.Receipt("ends"), arrived(f, 1, "o2:{}"))))
		_, states = readFlow(t, h, "last")
		require.Equal(t, "ock", states, "a step has ended once")
	})
}

// A flow is there until its steps are deleted, and then nothing is left of it, whatever has become
// of them.
func TestSweepDeletesTheFlowLast(t *testing.T) {
	for name, ended := range map[string]int{"all steps have ended": 300, "some have": 20, "none has": 0} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				f := newFlow([]string{"a"}, make([][]int, 300)...)
				for n := range f.Steps {
					f.Steps[n].ID = strconv.Itoa(n)
				}
				f.Steps[299].After = []int{298}
				require.NoError(t, just(h.TryStart(f)))
				for n := range ended {
					require.NoError(t, just(h.TryArrive(strconv.Itoa(1000000001+n), h.Keys.Receipt("ends"), arrived(f, n, "o2:{}out"))))
				}
				r, err := h.TrySweep("last", f.Name, "e", 0)
				require.NoError(t, err)
				require.Positive(t, r.Number(2))
				require.True(t, h.RDB.HExists(t.Context(), h.Keys.Flows, "last").Val())
				r, err = h.TrySweep("last", f.Name, "e", r.Number(2))
				require.NoError(t, err)
				require.EqualValues(t, -1, r.Number(2))
				require.Zero(t, h.RDB.Exists(t.Context(), h.Keys.Flows, h.Keys.Steps).Val())
			})
		})
	}
}

// A flow is released when it is complete or has failed, once, and not when its last step has begun.
func TestReleaseOfAFlow(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		all := topicsOf(h, "a")
		f := newFlow([]string{"a"}, nil)
		require.NoError(t, just(h.TryStart(f)))
		release := func(name string) string {
			t.Helper()
			r, err := h.TryRelease(h.Series.Next(), h.Keys.Receipt(h.Series.ID), [2]string{"last", name})
			require.NoError(t, err)
			return r.Text(2)
		}
		require.NotEqual(t, "s", release(f.Name), "a step is missing")
		require.Empty(t, h.Take(1, time.Minute))
		relay(t, all)
		require.NoError(t, just(h.TryArrive("1000000001", h.Keys.Receipt("ends"), arrived(f, 0, "o2:{}"))))
		require.NotEqual(t, "s", release("another1"))
		require.Empty(t, h.Take(1, time.Minute))
		require.Equal(t, "s", release(f.Name))
		held := h.TakeOne("last")
		require.Equal(t, "o", h.Retry(time.Hour, held))
		require.NotEqual(t, "s", release(f.Name), "its backoff is not cut short")
		require.Empty(t, h.Take(1, time.Minute))
	})
}
