package record

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A score is read to the microsecond, however many digits a release of Redis writes, and is sent
// back as it was written.
func TestLeaseEnd(t *testing.T) {
	for score, micros := range map[string]int64{
		"1763812345678":       1763812345678000,
		"1763812345678.9":     1763812345678900,
		"1763812345678.8999":  1763812345678900,
		"1763812345678.123":   1763812345678123,
		"1763812345678.12305": 1763812345678123,
		"1.763812345678e+12":  1763812345678000,
		"":                    0,
		"soon":                0,
	} {
		end := ParseLeaseEnd(score)
		require.Equal(t, micros, end.Micros(), score)
		require.Equal(t, score, end.String())
	}
	require.Equal(t, ParseLeaseEnd("1763812345678"), LeaseEndAt(1763812345678))
	require.Zero(t, LeaseEnd{}.Micros())
}

// Until an extension is answered, the lease ends at one of several times, and the fence names all.
func TestFence(t *testing.T) {
	given, first, second := ParseLeaseEnd("1000.25"), LeaseEndAt(2000), LeaseEndAt(3000)
	f := FenceOf(given)
	require.Equal(t, "1000.25", f.String())
	f.Propose(first)
	f.Propose(first)
	require.Equal(t, "1000.25 2000", f.String())
	f.Propose(second)
	f.Propose(first)
	require.Equal(t, "1000.25 2000 3000", f.String())
	require.Equal(t, given, f.Confirmed())
	for _, end := range []LeaseEnd{given, first, second, ParseLeaseEnd("1000.2500001")} {
		require.True(t, f.Has(end), end)
	}
	require.False(t, f.Has(LeaseEndAt(1000)))
	require.Equal(t, f, ParseFence(f.String()))

	f.Confirm(second)
	require.Equal(t, "3000", f.String())
	require.False(t, f.Has(first))
	require.Zero(t, ParseFence(""))
}

// A fence of one end is written without an allocation: every call of a settling script does so for
// each job.
func TestFenceDoesNotAllocate(t *testing.T) {
	f := FenceOf(LeaseEndAt(1000))
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = f.String() }))
}
