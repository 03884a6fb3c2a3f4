package web

import (
	"fmt"
	"slices"
	"strings"
)

const (
	drawnSteps = 40  // more steps than that are folded
	drawnBoxes = 120 // more boxes than that are not drawn
)

// A box is what the drawing of a flow shows: a step, or several that are alike. The last box is
// that of the last step.
type box struct {
	steps []int // indexes of the steps; empty: it is the last step
	after []int // indexes of the boxes that it waits for
	state string
	title string
	note  string
	href  string
	held  bool // it is on the path that holds the flow up

	layer, row int
}

// fold returns the boxes of steps, which stand after those that they wait for. after has, for each
// step, the indexes of the steps that it waits for, and topics their topics. If they are many,
// steps are one box that have the same topic, wait for steps that are alike, and are waited for by
// such. So a thousand steps between two others are one box. The drawing has no cycle: steps that
// are alike have the same distance from the first ones.
func fold(topics []string, after [][]int) []box {
	classes := make([]int, len(topics))
	for i := range classes {
		classes[i] = i
	}
	if len(topics) > drawnSteps {
		classes = alike(topics, after)
	}
	// In the order of their distance from the first ones, so that each box stands after all that it
	// waits for.
	order, depth := make([]int, len(topics)), make([]int, len(topics))
	for i := range order {
		order[i] = i
		for _, before := range after[i] {
			depth[i] = max(depth[i], depth[before]+1)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return depth[a] - depth[b] })
	var boxes []box
	index := make(map[int]int) // class to box
	for _, i := range order {
		at, known := index[classes[i]]
		if !known {
			at = len(boxes)
			index[classes[i]], boxes = at, append(boxes, box{})
		}
		boxes[at].steps = append(boxes[at].steps, i)
	}
	for at := range boxes {
		for _, i := range boxes[at].steps {
			for _, before := range after[i] {
				boxes[at].after = append(boxes[at].after, index[classes[before]])
			}
		}
		slices.Sort(boxes[at].after)
		boxes[at].after = slices.Compact(boxes[at].after)
	}
	last, awaited := box{}, make([]bool, len(boxes))
	for _, b := range boxes {
		for _, before := range b.after {
			awaited[before] = true
		}
	}
	for at := range boxes {
		if !awaited[at] {
			last.after = append(last.after, at)
		}
	}
	return append(boxes, last)
}

// alike returns a class for each step. Two walks are enough, because no step waits for a later one:
// one makes classes by the topics and by what is waited for, the other by what waits.
func alike(topics []string, after [][]int) []int {
	next := make([][]int, len(topics))
	for i, list := range after {
		for _, before := range list {
			next[before] = append(next[before], i)
		}
	}
	numbers := make(map[string]int)
	class := func(text string) int {
		n, known := numbers[text]
		if !known {
			n = len(numbers)
			numbers[text] = n
		}
		return n
	}
	of := func(classes, list []int) string {
		var set []int
		for _, i := range list {
			set = append(set, classes[i])
		}
		slices.Sort(set)
		return strings.Trim(fmt.Sprint(slices.Compact(set)), "[]")
	}
	down, up, both := make([]int, len(topics)), make([]int, len(topics)), make([]int, len(topics))
	for i := range topics {
		down[i] = class("d" + of(down, after[i]) + "|" + topics[i])
	}
	for i := len(topics) - 1; i >= 0; i-- {
		up[i] = class("u" + of(up, next[i]) + "|" + topics[i])
	}
	for i := range topics {
		both[i] = class(fmt.Sprint("b", down[i], " ", up[i]))
	}
	return both
}

// place gives each box its layer, which is behind those of all that it waits for, and its row. It
// returns how many layers there are, and rows in the longest one.
func place(boxes []box) (layers, rows int) {
	for at := range boxes { // each stands after what it waits for
		b := &boxes[at]
		b.layer = 0
		for _, before := range b.after {
			b.layer = max(b.layer, boxes[before].layer+1)
		}
		layers = max(layers, b.layer+1)
	}
	byLayer := make([][]int, layers)
	for at := range boxes {
		byLayer[boxes[at].layer] = append(byLayer[boxes[at].layer], at)
	}
	for _, layer := range byLayer {
		// Near what they wait for, so that fewer lines cross.
		slices.SortStableFunc(layer, func(a, b int) int {
			x, y := middle(boxes, a), middle(boxes, b)
			switch {
			case x < y:
				return -1
			case x > y:
				return 1
			}
			return 0
		})
		for row, at := range layer {
			boxes[at].row = row
		}
		rows = max(rows, len(layer))
	}
	return layers, rows
}

// middle returns the mean row of what a box waits for.
func middle(boxes []box, at int) float64 {
	sum := 0
	for _, before := range boxes[at].after {
		sum += boxes[before].row
	}
	return float64(sum) / float64(max(len(boxes[at].after), 1))
}

// hold marks the path that holds a flow up: from the last box back to one that waits for nothing
// that is open, through the longest chain of open boxes.
func hold(boxes []box, open func(b *box) bool) {
	chain := make([]int, len(boxes))
	for at := range boxes {
		if !open(&boxes[at]) {
			continue
		}
		for _, before := range boxes[at].after {
			chain[at] = max(chain[at], chain[before])
		}
		chain[at]++
	}
	at := len(boxes) - 1
	for chain[at] > 0 {
		boxes[at].held = true
		best := -1
		for _, before := range boxes[at].after {
			if chain[before] > 0 && (best < 0 || chain[before] > chain[best]) {
				best = before
			}
		}
		if best < 0 {
			return
		}
		at = best
	}
}
