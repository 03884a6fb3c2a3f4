package flow

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
)

func TestFlow(t *testing.T) {
	t.Parallel()
	const name = "\x00 12\xff 5x"
	got, err := Read(name + "o - 3 2 0 12 1700000000000 -")
	require.NoError(t, err)
	require.Equal(t, Flow{Name: name, State: Open, Total: 3, Left: 2, Bytes: 12, Started: 1_700_000_000_000, Why: noStep}, got)
	got, err = Read(name + "f ig 3 0 1 0 1 2")
	require.NoError(t, err)
	require.Equal(t, Flow{Name: name, State: Failed, Ignore: true, Group: true, Total: 3, Failed: 1, Started: 1, Why: 2}, got)
	for _, bad := range []string{"", name, name + "o - 3 2 0 12 1", name + "open - 3 2 0 12 1 -", name + "o - a 2 0 12 1 -", name + "o - 1 2 0 b 1 -"} {
		_, err := Read(bad)
		require.ErrorIs(t, err, errFlow, bad)
	}
	require.Equal(t, "-", Flags(false, false))
	require.Equal(t, "i", Flags(true, false))
	require.Equal(t, "g", Flags(false, true))
	require.Equal(t, "ig", Flags(true, true))
}

func TestState(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]State{
		"w 2":             {Letter: Waits, Left: 2, Cause: noStep},
		"s 1700000000000": {Letter: Started, At: 1_700_000_000_000, Cause: noStep},
		`o 5 {"output":3,"attempt":2,"start":1,"end":4,"server":"s"}`: {
			Letter: Done, At: 5, Cause: noStep, Run: record.Done{Output: 3, Attempt: 2, Start: 1, End: 4, Server: "s"},
		},
		"o 5 {":                {Letter: Done, At: 5, Cause: noStep},
		"d 5 no route to Rome": {Letter: Dead, At: 5, Text: "no route to Rome", Cause: noStep},
		"c 5 ":                 {Letter: Cancelled, At: 5, Cause: noStep},
		"k 5 12":               {Letter: Skipped, At: 5, Cause: 12},
		"k 5 ":                 {Letter: Skipped, At: 5, Cause: noStep},
	} {
		got, err := ReadState(value)
		require.NoError(t, err, value)
		require.Equal(t, want, got, value)
		require.Equal(t, want.Letter != Waits && want.Letter != Started, Ended(got.Letter))
	}
	for _, bad := range []string{"", "w", "w ", "w x", "s12 3"} {
		_, err := ReadState(bad)
		require.ErrorIs(t, err, errState, bad)
	}
}
