package web

import (
	"encoding/xml"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Few steps have a box each; many that are alike share one, also along chains.
func TestFold(t *testing.T) {
	boxes := fold([]string{"render", "sign", "archive"}, [][]int{nil, {0}, {0}})
	require.Len(t, boxes, 4)
	require.Equal(t, []int{1, 2}, boxes[3].after, "the last step")
	require.Equal(t, []int{0}, boxes[1].after)

	topics, after := []string{"split"}, [][]int{nil}
	for range 500 { // 500 chains of two behind the first step
		topics, after = append(topics, "image"), append(after, []int{0})
		topics, after = append(topics, "mail"), append(after, []int{len(topics) - 1})
	}
	boxes = fold(topics, after)
	require.Len(t, boxes, 4)
	require.Len(t, boxes[1].steps, 500)
	require.Len(t, boxes[2].steps, 500)
	require.Equal(t, []int{1}, boxes[2].after)
	require.Equal(t, []int{2}, boxes[3].after)

	layers, rows := place(boxes)
	require.Equal(t, 4, layers)
	require.Equal(t, 1, rows)
}

// A step that differs from its siblings in what waits for it has a box of its own.
func TestFoldKeepsWhatDiffers(t *testing.T) {
	topics, after := []string{"split"}, [][]int{nil}
	for range 100 {
		topics, after = append(topics, "image"), append(after, []int{0})
	}
	topics, after = append(topics, "cover"), append(after, []int{50})
	boxes := fold(topics, after)
	require.Len(t, boxes, 5) // split, the images, the one image, the cover, the last step
	require.Len(t, boxes[1].steps, 99)
	require.Equal(t, []int{50}, boxes[2].steps)
}

// Of any flow each step is in one box, and each box is behind all that it waits for and beside no
// other.
func TestFoldAtRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		n := rng.IntN(120)
		topics, after := make([]string, n), make([][]int, n)
		for i := range n {
			topics[i] = string(rune('a' + rng.IntN(3)))
			for range rng.IntN(3) {
				if i > 0 {
					after[i] = append(after[i], rng.IntN(i))
				}
			}
		}
		boxes := fold(topics, after)
		layers, rows := place(boxes)
		seen, spots := make([]bool, n), map[[2]int]bool{}
		for at, b := range boxes {
			for _, i := range b.steps {
				require.False(t, seen[i])
				seen[i] = true
			}
			for _, before := range b.after {
				require.Less(t, boxes[before].layer, b.layer, "box %d", at)
			}
			require.Less(t, b.layer, layers)
			require.Less(t, b.row, rows)
			require.False(t, spots[[2]int{b.layer, b.row}])
			spots[[2]int{b.layer, b.row}] = true
		}
		require.NotContains(t, seen, false)
	}
}

// The path that holds a flow up is the longest chain of open boxes.
func TestHold(t *testing.T) {
	boxes := fold([]string{"a", "b", "c", "d", "e"}, [][]int{nil, {0}, {1}, nil, {3}})
	hold(boxes, func(b *box) bool { // b, c, e and the last step
		return len(b.steps) == 0 || b.steps[0] != 0 && b.steps[0] != 3
	})
	var held []int
	for at := range boxes {
		if boxes[at].held {
			held = append(held, at)
		}
	}
	require.Equal(t, []int{2, 4, 5}, held, "b and c")
}

// The drawing is well-formed, and what users have named is text in it.
func TestDrawEscapes(t *testing.T) {
	boxes := fold([]string{"a", "b"}, [][]int{nil, {0}})
	for at := range boxes {
		boxes[at].state, boxes[at].held = "started", true
		boxes[at].title = `<script>alert(1)</script>" onload="x`
		boxes[at].note, boxes[at].href = `'"&<`, `job?id=%3Cb%3E&topic="`
	}
	text := string(draw(boxes, `"><b>`))
	require.NotContains(t, text, "<script")
	require.NotContains(t, text, `" onload="`)
	require.Equal(t, 2, strings.Count(text, `class="line held"`))
	for dec := xml.NewDecoder(strings.NewReader(text)); ; {
		_, err := dec.Token()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
	}
	require.Equal(t, strings.Repeat("ä", 24)+"…", fit(strings.Repeat("ä", 30), 25))
	require.Contains(t, fmt.Sprint(text), `viewBox="0 0 `)
}
