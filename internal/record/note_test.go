package record

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Notes come back as they were, whatever bytes are in their texts and names.
func TestNotesComeBack(t *testing.T) {
	const nonce = "\x00 1 2\xff:\n"
	require.Len(t, nonce, NonceLen)
	for want, n := range map[string]Note{
		" 0 0 0 0:":                    {},
		" 7 1 0 0:":                    {At: 7, Done: 1},
		" 7 1 2 3:a b":                 {At: 7, Done: 1, Total: 2, Text: "a b"},
		" 0 0 0 0:1:a3:b:c":            {Steps: []string{"a", "b:c"}},
		" 7 9223372036854775807 0 1: ": {At: 7, Done: math.MaxInt64, Text: " "},
	} {
		n.Nonce = nonce
		require.Equal(t, nonce+want, n.Encode())
		got, ok := DecodeNote(nonce+want, nonce)
		require.True(t, ok, want)
		require.Equal(t, n, got)
	}
}

// What no release has written is no note, nor is that of another incarnation.
func TestNotesThatAreNone(t *testing.T) {
	const nonce = "12345678"
	for _, value := range []string{
		"", nonce, nonce + " ", nonce + "  ", nonce + " 1 2 3", nonce + " 1 2 3 ", nonce + " 1 2 3 4:abc", nonce + " 1 2 3 -1:", nonce + " -1 2 3 0:",
		nonce + " 1 -2 3 0:", nonce + " 1 2 -3 0:", nonce + " 1 2 x 0:", nonce + " 1 2 3 0:x", nonce + " 1 2 3 0:1:", nonce + " 1 2 3 0:1:a2:b",
		nonce + "x1 2 3 0:", nonce + " 9223372036854775808 2 3 0:", nonce + " 253402300800000 2 3 0:", "87654321 1 2 3 0:",
	} {
		n, ok := DecodeNote(value, nonce)
		require.False(t, ok, "%q", value)
		require.Zero(t, n, "%q", value)
	}
	_, ok := DecodeNote("short 1 2 3 0:", "short")
	require.False(t, ok, "no nonce is shorter")
}

func FuzzDecodeNote(f *testing.F) {
	full := Note{Nonce: "12345678", At: 1, Done: 2, Total: 3, Text: "half", Steps: []string{"a", strings.Repeat("b", MaxStepName)}}
	f.Add(full.Encode())
	f.Add("12345678 1 2 3 0:1:a1:")
	f.Fuzz(func(t *testing.T, value string) {
		if len(value) < NonceLen {
			return
		}
		n, ok := DecodeNote(value, value[:NonceLen])
		if !ok {
			require.Zero(t, n)
			return
		}
		again, ok := DecodeNote(n.Encode(), n.Nonce)
		require.True(t, ok)
		require.Equal(t, n, again)
	})
}
