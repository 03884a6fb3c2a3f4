package record

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPlanRoundTrip(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]Plan{
		"one":    {Times: []int64{1}},
		"some":   {Times: []int64{1, 2, MaxTime}, Stage: 2},
		"failed": {Times: []int64{5, 6, 7}, Stage: 2, Failed: []FailedStage{{0, 9, 3, "error", "no"}, {1, 10, 1, "panic", ""}}},
		"redo":   {Times: []int64{5, 6}, Failed: []FailedStage{{0, 9, 3, "error", "no"}}, Redo: true},
	} {
		for _, key := range []string{"", "k"} {
			o := Options{Retry: NotSet, DueAt: p.Times[p.Stage], Plan: &p, Key: key, Headers: map[string]string{"a": "b"}}
			head, tail, err := Encode(NewNonce(), &o, []byte("payload"))
			require.NoError(t, err)
			raw := Join(head, 1_700_000_000_000, tail)
			require.Equal(t, key != "", HasKey(raw), name)
			require.EqualValues(t, map[string]byte{"": 3, "k": 4}[key], raw[NonceLen], name)
			j, err := Decode(raw)
			require.NoError(t, err, name)
			require.Equal(t, o, j.Options, name)
			require.Equal(t, "payload", string(j.Payload))
			require.Equal(t, o.Due(1_700_000_000_000), DueOf(raw[:min(len(raw), DueHead)]), name)
			for n := range len(raw) - len("payload") - 2 {
				_, err := DecodeMeta(raw[:n])
				require.Error(t, err, "%s: cut to %d bytes", name, n)
			}
		}
	}
}

// A plan of the most stages, all of which have failed, fits into what a list reads of a record.
func TestLargestPlan(t *testing.T) {
	t.Parallel()
	p := &Plan{}
	for i := range MaxStages {
		p.Times = append(p.Times, MaxTime-MaxStages+int64(i))
	}
	failed := FailedStage{At: MaxTime, Attempt: 1 << 30, Kind: "undecodable", Message: strings.Repeat("x", 1000)}
	for range MaxStages - 1 {
		p, _ = p.Fail(failed)
	}
	require.Len(t, p.Failed, MaxStages-1)
	head, tail, err := Encode(NewNonce(), &Options{Plan: p}, nil)
	require.NoError(t, err)
	require.Less(t, len(head)+StampLen+len(tail), 16<<10)
}

func TestPlansThatCannotBe(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]Plan{
		"0 stages, must be 1 to 100":       {},
		"101 stages":                       {Times: make([]int64, 101)},
		"stage 3 of 2":                     {Times: []int64{1, 2}, Stage: 2},
		"stage 0 of 2":                     {Times: []int64{1, 2}, Stage: -1},
		"stage 1 is due at 0 ms":           {Times: []int64{0}},
		"stage 2 is not due after stage 1": {Times: []int64{2, 2}},
		"failed stage 2 of 1":              {Times: []int64{2}, Failed: []FailedStage{{Stage: 1}}},
		"failed stage 1 of 2":              {Times: []int64{2, 3}, Failed: []FailedStage{{Stage: 0}, {Stage: 0}}},
	} {
		require.ErrorContains(t, p.Check(), want)
		if len(p.Times) == 0 || len(p.Times) > MaxStages {
			continue
		}
		raw := Join(errEncode(t, &p))
		_, err := Decode(raw)
		require.ErrorContains(t, err, want)
		require.False(t, errors.Is(err, ErrNewer))
	}
}

func errEncode(t *testing.T, p *Plan) (head string, at int64, tail string) {
	head, tail, err := Encode(NewNonce(), &Options{Plan: p}, nil)
	require.NoError(t, err)
	return head, 1, tail
}

// Every stage has its turn once, whichever of them fail. Then those that have failed are left, and
// have theirs when somebody asks for it.
func TestPlanTurns(t *testing.T) {
	t.Parallel()
	times := []int64{10, 20, 30, 40}
	for fails := range 1 << len(times) {
		p, dead := &Plan{Times: times}, false
		var ran, redone []int
		for p != nil && !p.Closed() && !dead {
			ran = append(ran, p.Stage)
			var due int64
			if next := (*Plan)(nil); fails>>p.Stage&1 == 1 {
				if next, due = p.Fail(FailedStage{}); next == nil {
					dead = true // the last one
					break
				}
				p = next
			} else {
				p, due = p.Next()
			}
			if p != nil && !p.Closed() {
				require.Equal(t, times[p.Stage], due)
			}
		}
		require.Equal(t, []int{0, 1, 2, 3}, ran)
		if dead { // revived, it succeeds
			require.Equal(t, 3, p.Stage)
			p, _ = p.Next()
		}
		for p != nil {
			require.True(t, p.Closed() || p.Redo)
			require.Nil(t, p.Rest())
			next, _ := p.Fail(FailedStage{})
			require.Nil(t, next, "the job is dead again")
			redone = append(redone, p.Stage)
			p, _ = p.Again().Next()
		}
		var want []int
		for i := range len(times) - 1 {
			if fails>>i&1 == 1 {
				want = append(want, i)
			}
		}
		require.Equal(t, want, redone, fails)
	}
}
