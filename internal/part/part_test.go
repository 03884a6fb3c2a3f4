package part_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/part"
)

func TestMapIsReadAsItIsWritten(t *testing.T) {
	for _, text := range []string{"", "0:1", "0:1 1:12", "1:12k 7:1024", "3:1k"} {
		m, err := part.ParseMap(text)
		require.NoError(t, err, text)
		require.Equal(t, text, m.String())
	}
	for _, text := range []string{
		"1", "x:1", "1:x", "1:0", "1:1025", "-1:2", "0:2", "0:1k", "2:1 1:1", "1:1 1:1", "1:12kk",
		"1:1 2:1 3:1 4:1 5:1 6:1 7:1 8:1 9:1",
	} {
		_, err := part.ParseMap(text)
		require.ErrorContains(t, err, "damaged", text)
	}
}

// The specification of Redis Cluster has the first value; the others are those of CLUSTER KEYSLOT.
func TestSlots(t *testing.T) {
	require.Equal(t, 0x31C3, part.Range("123456789", 16384))
	require.Equal(t, 12182, part.Range("foo", 16384))
	require.Equal(t, 0, part.Range("", 16384))
}

// A Cluster whose nodes have equal parts of the slots has as many partitions on each node.
func TestNamesAreEven(t *testing.T) {
	for _, c := range []struct{ parts, nodes int }{{12, 3}, {120, 30}, {1024, 4}, {3, 3}, {1, 1}} {
		names := part.Generation{Number: 1, Parts: c.parts}.Names("mail")
		require.Len(t, names, c.parts)
		per := make([]int, c.nodes)
		for i, name := range names {
			per[part.Range(name, c.nodes)]++
			topic, generation, index, ok := part.Split(name)
			require.True(t, ok)
			require.Equal(t, []any{"mail", 1, i}, []any{topic, generation, index})
			require.LessOrEqual(t, len(name), len("mail")+part.NameRoom)
		}
		for _, n := range per {
			require.Equal(t, c.parts/c.nodes, n)
		}
	}
	require.Equal(t, []string{"mail"}, part.Generation{Parts: 1}.Names("mail"))
}

func TestSplitOfOtherNames(t *testing.T) {
	for _, name := range []string{"mail", "mail#", "mail#1", "mail#1.2", "mail#0.1.a", "mail#x.1.a", "mail#1.x.a", "mail#1.2.a.b"} {
		_, _, _, ok := part.Split(name)
		require.False(t, ok, name)
	}
	topic, is := part.IsName("mail#1.2.a")
	require.True(t, is)
	require.Equal(t, "mail", topic)
	_, is = part.IsName("mail")
	require.False(t, is)
}

// A job belongs to the same partition for each client: the numbers are a promise.
func TestIndex(t *testing.T) {
	byID, byKey := part.Generation{Number: 1, Parts: 12}, part.Generation{Number: 1, Parts: 12, ByKey: true}
	require.Equal(t, byID.Index("customer", ""), byKey.Index("a", "customer"))
	require.Equal(t, byID.Index("a", "customer"), byKey.Index("a", ""))
	require.Equal(t, 0, part.Generation{Parts: 1}.Index("a", "b"))
	counts := make([]int, 12)
	for i := range 12_000 {
		counts[byID.Index(fmt.Sprint("job-", i), "")]++
	}
	for _, n := range counts {
		require.InDelta(t, 1000, n, 150)
	}
}

func TestPlaces(t *testing.T) {
	m, err := part.ParseMap("1:2 2:3")
	require.NoError(t, err)
	list := m.Places("mail")
	require.Len(t, list, 6)
	require.Equal(t, "mail", list[0])
	require.True(t, strings.HasPrefix(list[1], "mail#1.0."))
	require.True(t, strings.HasPrefix(list[5], "mail#2.2."))
	require.Equal(t, part.Generation{Number: 2, Parts: 3}, m.Open())
	require.Equal(t, []string{"mail"}, part.Map(nil).Places("mail"))
	require.Equal(t, part.Generation{Parts: 1}, part.Map(nil).Open())
}

// Keys stay where all jobs of a key were together, if they are together in the next generation.
func TestKeysStay(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "0:1": "", "0:1 1:3k": "0", "0:1 1:3": "", "1:3k 2:4k": "1", "1:3 2:4k": "", "1:3k 2:4": "", "0:1 1:3 2:4k 5:7k 6:2k": "2 5",
	} {
		m, err := part.ParseMap(text)
		require.NoError(t, err)
		var got []string
		for n := range 8 {
			if m.KeysStay(n) {
				got = append(got, fmt.Sprint(n))
			}
		}
		require.Equal(t, want, strings.Join(got, " "), text)
	}
}
