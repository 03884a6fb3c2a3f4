package places

import (
	"encoding/base64"
	"hash/crc32"
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// A cursor is read as it was written. One of a topic without partitions has the format of releases
// before them, which refuse the other one.
func TestCursorsAreReadAsWritten(t *testing.T) {
	t.Parallel()
	id := QueryID{1, 2, 3}
	for _, place := range [][]string{
		{"1700000000000", "x"}, {"lanes"}, {"after", ""}, {"#0.0", "1", ""}, {"#1.3"}, {"#8.1023", "1700000000000", "id\x00\xff"},
	} {
		text := EncodeCursor(id, place)
		got, wrong := DecodeCursor(text, id)
		require.Empty(t, wrong, place)
		require.Equal(t, place, got)
		raw, err := base64.RawURLEncoding.DecodeString(text)
		require.NoError(t, err)
		version := byte(1)
		if place[0][0] == '#' {
			version = 2
		}
		require.Equal(t, version, raw[0])
		_, wrong = DecodeCursor(text, QueryID{1, 2, 4})
		require.Contains(t, wrong, "another query")
		for at := range raw {
			raw[at] ^= 1
			_, wrong := DecodeCursor(base64.RawURLEncoding.EncodeToString(raw), id)
			require.Contains(t, wrong, "damaged")
			raw[at] ^= 1
		}
	}
	sealed := func(version byte, place ...string) string {
		raw := AppendWords(append([]byte{version}, id[:]...), place)
		sum := crc32.ChecksumIEEE(raw)
		return base64.RawURLEncoding.EncodeToString(append(raw, byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum)))
	}
	_, wrong := DecodeCursor(sealed(3, "x"), id)
	require.Equal(t, "it is of format 3, and this release reads 2", wrong)
	for _, place := range []string{"#", "#1", "#1.x", "#-1.0", "#01.0", "#1.0.0"} {
		_, wrong := DecodeCursor(sealed(2, place), id)
		require.Contains(t, wrong, "damaged", place)
	}
	for _, c := range []string{sealed(1, "#1.0"), sealed(2, "x"), sealed(1), "", "*"} {
		_, wrong := DecodeCursor(c, id)
		require.Contains(t, wrong, "damaged")
	}
}

func FuzzCursor(f *testing.F) {
	f.Add(EncodeCursor(QueryID{}, []string{"#1.0", "1", "x"}))
	f.Fuzz(func(t *testing.T, text string) {
		place, wrong := DecodeCursor(text, QueryID{})
		if wrong != "" {
			return
		}
		require.Equal(t, text, EncodeCursor(QueryID{}, place))
		cutPlace(place)
	})
}

// Behind a mark, each place goes on where the order of all of them does.
func TestBehindAMark(t *testing.T) {
	t.Parallel()
	m := newMark("1700000000000", Ref{1, 3}, "x")
	require.Equal(t, []string{"1700000000000", "x"}, m.Behind(Ref{1, 3}))
	for _, later := range []Ref{{1, 4}, {2, 0}} {
		require.Equal(t, []string{"1700000000000", ""}, m.Behind(later))
	}
	for _, earlier := range []Ref{{}, {1, 2}} {
		words := m.Behind(earlier)
		score, err := strconv.ParseFloat(words[0], 64)
		require.NoError(t, err)
		require.Equal(t, math.Nextafter(1_700_000_000_000, math.Inf(1)), score)
		require.Empty(t, words[1])
	}
	r, inner, parted := cutPlace(join(Ref{1, 3}, []string{"a", "b"}))
	require.Equal(t, []any{Ref{1, 3}, []string{"a", "b"}, true}, []any{r, inner, parted})
	_, inner, parted = cutPlace([]string{"a", "b"})
	require.Equal(t, []any{[]string{"a", "b"}, false}, []any{inner, parted})
}
