package record

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAuditEntryReadsWhatWasWritten(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]AuditEntry{
		"a job":          {At: 1, Actor: "alice", Action: "cancel", Topic: "mail", ID: "order-42", Count: 1},
		"a filter":       {At: MaxTime, Actor: "b", Action: "revive", Topic: "mail", Filter: `state=dead error="550: no"`, Count: 1_000_000},
		"any bytes":      {At: 7, Actor: "5:a b\n", Action: "cancel", Topic: "töpic", ID: "\x00\xff 3:x", Filter: "\xff"},
		"nothing":        {},
		"what was":       {At: 7, Filter: "running 5", Was: "3:running 3"},
		"longest filter": {At: 7, Filter: strings.Repeat("f", MaxFilter), Was: strings.Repeat("w", MaxFilter)},
	} {
		got, ok := DecodeAudit("0 nonce " + a.Encode())
		require.True(t, ok, name)
		at := a
		at.At = 0
		require.Equal(t, at, got, name)
		got, ok = DecodeAudit("1763712345678 n " + a.Encode() + "3:new")
		require.True(t, ok, "%s: with a field of a later release", name)
		at.At = 1763712345678
		require.Equal(t, at, got, name)
	}
	long := AuditEntry{Filter: strings.Repeat("f", MaxFilter+1), Was: strings.Repeat("w", MaxFilter+1)}
	got, ok := DecodeAudit("1 n " + long.Encode())
	require.True(t, ok)
	require.Len(t, got.Filter, MaxFilter)
	require.True(t, strings.HasSuffix(got.Filter, "…"))
	require.Len(t, got.Was, MaxFilter)
	require.True(t, strings.HasSuffix(got.Was, "…"))
}

func TestAuditRefusesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	const rest = "1:a1:b1:c1:d1:e"
	for _, element := range []string{
		"", "1", "1 n", "1 n 1", "x n 1 " + rest, "-1 n 1 " + rest, "10000000000000 n 1 " + rest, "1 n x " + rest, "1 n -1 " + rest,
		"1 n 1 ", "1 n 1 1:a1:b1:c1:d", "1 n 1 9:a1:b1:c1:d1:e", "1 n 1 " + rest + "9:was", "1 n 1 -1:a1:b1:c1:d1:e", "1 n 1 a",
	} {
		a, ok := DecodeAudit(element)
		require.False(t, ok, element)
		require.Zero(t, a, element)
	}
	_, ok := DecodeAudit("1 n 1 " + rest)
	require.True(t, ok, "of an earlier release")
}

func FuzzAuditEntry(f *testing.F) {
	f.Add("1 n 1 1:a1:b1:c1:d1:e")
	f.Fuzz(func(t *testing.T, element string) {
		a, ok := DecodeAudit(element)
		if !ok {
			require.Zero(t, a)
			return
		}
		again, ok := DecodeAudit("5 n " + a.Encode())
		require.True(t, ok)
		a.Filter, a.Was, a.At = clip(a.Filter, MaxFilter), clip(a.Was, MaxFilter), 5
		require.Equal(t, a, again)
	})
}
