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
		"0:":                                  {},
		"0: 7 1 0 0 0 ":                       {At: 7, Done: 1},
		"0: 7 1 2 8 9 3:a b":                  {At: 7, Done: 1, Total: 2, Run: 8, Number: 9, Text: "3:a b"},
		"8:1:a3:b:c":                          {Steps: []string{"a", "b:c"}},
		"3:1:  7 9223372036854775807 0 3 1  ": {Steps: []string{" "}, At: 7, Done: math.MaxInt64, Run: 3, Number: 1, Text: " "},
	} {
		n.Nonce = nonce
		require.Equal(t, nonce+want, n.Encode())
		got, damage, ok := DecodeNote(nonce+want, nonce)
		require.True(t, ok, want)
		require.Zero(t, damage)
		require.Equal(t, n, got)
	}
}

// What is of another incarnation is not read.
func TestNotesOfAnother(t *testing.T) {
	for _, value := range []string{"", "1", "12345678", "876543210:", "87654321"} {
		n, damage, ok := DecodeNote(value, "12345678")
		require.False(t, ok, "%q", value)
		require.Zero(t, n, "%q", value)
		require.Zero(t, damage)
	}
	_, _, ok := DecodeNote("short0:", "short")
	require.False(t, ok, "no nonce is shorter")
}

// What is damaged hides nothing else, and is never taken for what it is not.
func TestDamagedNotes(t *testing.T) {
	const nonce = "12345678"
	for _, rest := range []string{
		" ", "  ", " 1", " 1 2 3 4", " 1 2 3 4 5", " 1 2 x 4 5 ", " 1 2 3 4 -5 ", " -1 2 3 4 5 ", " 1 -2 3 4 5 ", " 1 2 -3 4 5 ", " 1 2 3 -4 5 ", " 0 2 3 4 5 ",
		" 9223372036854775808 2 3 4 5 ", " 253402300800000 2 3 4 5 ", " 1 2 3 4 5 " + strings.Repeat("x", MaxProgressText+1),
	} {
		n, damage, ok := DecodeNote(nonce+"7:1:a2:bc"+rest, nonce)
		require.True(t, ok)
		require.Equal(t, NoteDamage{Progress: true}, damage, "%q", rest)
		require.Equal(t, Note{Nonce: nonce, Steps: []string{"a", "bc"}}, n)
	}
	for value, steps := range map[string][]string{
		"x": nil, "x: 1 2 3 4 5 text": nil, "-1:": nil, "5:1:a": nil, "3:1:ax": {"a"}, "3:1:a2:bc": {"a"}, "7:1:a9:bc": {"a"}, "4:1:a ": {"a"}, "6:1:a2:bc": {"a"}, "2:1:": nil,
	} {
		n, damage, ok := DecodeNote(nonce+value, nonce)
		require.True(t, ok)
		require.True(t, damage.Steps, "%q", value)
		require.Equal(t, Note{Nonce: nonce, Steps: steps}, n, "%q", value)
	}
}

func FuzzDecodeNote(f *testing.F) {
	full := Note{Nonce: "12345678", At: 1, Done: 2, Total: 3, Run: 4, Number: 5, Text: "half", Steps: []string{"a", strings.Repeat("b", MaxStepName)}}
	f.Add(full.Encode())
	f.Add("123456783:1:a 1 2 3 4 5")
	f.Fuzz(func(t *testing.T, value string) {
		if len(value) < NonceLen {
			return
		}
		n, _, ok := DecodeNote(value, value[:NonceLen])
		if !ok {
			require.Zero(t, n)
			return
		}
		again, damage, ok := DecodeNote(n.Encode(), n.Nonce)
		require.True(t, ok)
		require.Zero(t, damage)
		require.Equal(t, n, again)
	})
}
