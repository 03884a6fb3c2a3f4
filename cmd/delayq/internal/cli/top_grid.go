package cli

import (
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// A topColumn is a column of the view.
type topColumn struct {
	head  string
	right bool // aligned to the right, and never cut
	least int  // columns that are kept, so that rows do not move when numbers change
	drop  int  // the higher, the sooner it is left out; 0: it stays
}

const roomyCell = 16 // columns that a text keeps rather than columns beside it that can be left out

// A grid has rows that are aligned and fit a width.
type grid struct {
	columns []topColumn
	widths  []int // -1: left out
}

// newGrid chooses the widths for the rows that are shown.
func newGrid(columns []topColumn, rows []topRow, width int) *grid {
	g := &grid{columns, make([]int, len(columns))}
	for i, c := range columns {
		g.widths[i] = max(c.least, ansi.StringWidth(c.head))
		for _, row := range rows {
			g.widths[i] = max(g.widths[i], ansi.StringWidth(row.cells[i]))
		}
	}
	for g.total(roomyCell) > width {
		first := -1
		for i, c := range columns {
			if g.widths[i] >= 0 && c.drop > 0 && (first < 0 || c.drop > columns[first].drop) {
				first = i
			}
		}
		if first < 0 {
			break
		}
		g.widths[first] = -1
	}
	for g.total(1<<20) > width {
		widest := -1
		for i, c := range columns {
			if !c.right && g.widths[i] > max(narrow, ansi.StringWidth(c.head)) && (widest < 0 || g.widths[i] > g.widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		g.widths[widest]--
	}
	return g
}

// total returns the width of a row in which texts have at most this many columns.
func (g *grid) total(text int) int {
	sum := -1
	for i, w := range g.widths {
		switch {
		case w < 0:
		case g.columns[i].right:
			sum += w + 1
		default:
			sum += min(w, max(text, g.columns[i].least)) + 1
		}
	}
	return sum
}

// line returns a row. paint colors a cell, which is not cut any more.
func (g *grid) line(cells []string, paint func(string) string) string {
	var line strings.Builder
	for i, cell := range cells {
		width := g.widths[i]
		if width < 0 {
			continue
		}
		if line.Len() > 0 {
			line.WriteByte(' ')
		}
		if cell = safe(cell, false); ansi.StringWidth(cell) > width {
			cell = ansi.Truncate(cell, width, "…")
		}
		blank := strings.Repeat(" ", max(0, width-ansi.StringWidth(cell)))
		if cell = paint(cell); g.columns[i].right {
			line.WriteString(blank + cell)
		} else {
			line.WriteString(cell + blank)
		}
	}
	return line.String()
}

var sparks = []rune("▁▂▃▄▅▆▇█")

// spark draws numbers as bars, the largest of them as high as a line.
func spark[N int64 | float64](list []N) string {
	most := N(0)
	for _, n := range list {
		most = max(most, n)
	}
	bars := make([]rune, len(list))
	for i, n := range list {
		bars[i] = sparks[0]
		if n > 0 {
			bars[i] = sparks[int(float64(n)/float64(most)*float64(len(sparks)-1)+0.5)]
		}
	}
	return string(bars)
}

// short writes a number in at most seven columns.
func short(n int64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}} {
		if f := float64(n) / unit.size; f >= 1 {
			digits := 2
			if f >= 100 {
				digits = 0
			}
			return fixed(f, digits) + unit.name
		}
	}
	return number(n)
}
