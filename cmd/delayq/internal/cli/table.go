package cli

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/mattn/go-runewidth"
)

// A table writes rows in columns as wide as their cells. On a terminal, it is cut to its width.
type table struct {
	a      *app
	heads  []string
	right  []bool
	minor  []bool // left out on a narrow terminal; nil: none
	hidden []bool
	rows   [][]string
	widths []int // nil: not chosen yet
	n      int
}

const (
	gap      = 2    // columns between two cells
	rowsHeld = 1000 // after which the widths are chosen
	narrow   = 8    // columns that a text keeps at least
	roomy    = 20   // columns that a text keeps rather than minor cells beside it
)

func (t *table) add(cells []string) error {
	for i, cell := range cells {
		cells[i] = safe(cell, false)
	}
	t.n++
	if t.widths != nil {
		return t.write(cells)
	}
	if t.rows = append(t.rows, cells); len(t.rows) == rowsHeld {
		return t.release()
	}
	return nil
}

// end writes the rows that are still held. A table without rows has no head either.
func (t *table) end() error {
	if t.widths == nil && t.n > 0 {
		return t.release()
	}
	return nil
}

// release chooses the widths and writes the rows that are held.
func (t *table) release() error {
	t.widths, t.hidden = make([]int, len(t.heads)), make([]bool, len(t.heads))
	for _, row := range append([][]string{t.heads}, t.rows...) {
		for i, cell := range row {
			t.widths[i] = max(t.widths[i], runewidth.StringWidth(cell))
		}
	}
	if t.a.out.terminal && t.a.out.width > 0 {
		t.fit(t.a.out.width)
	}
	if err := t.write(t.heads); err != nil {
		return err
	}
	for _, row := range t.rows {
		if err := t.write(row); err != nil {
			return err
		}
	}
	t.rows = nil
	return nil
}

// fit makes rows have at most this many columns: it leaves out minor cells from the right until
// text has room enough, and then narrows the widest texts.
func (t *table) fit(width int) {
	total := func(least int) int { // with texts of at least this width
		sum := -gap
		for i, w := range t.widths {
			switch {
			case t.hidden[i]:
			case t.right[i]:
				sum += w + gap
			default:
				sum += min(w, max(least, len(t.heads[i]))) + gap
			}
		}
		return sum
	}
	for i := len(t.minor) - 1; i >= 0 && total(roomy) > width; i-- {
		t.hidden[i] = t.minor[i]
	}
	for total(math.MaxInt) > width {
		widest := -1
		for i, w := range t.widths {
			if !t.right[i] && !t.hidden[i] && w > max(narrow, len(t.heads[i])) && (widest < 0 || w > t.widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		t.widths[widest]--
	}
}

func (t *table) write(cells []string) error {
	cut := t.a.out.terminal && t.a.out.width > 0
	var line strings.Builder
	used := 0
	for i, cell := range cells {
		if t.hidden[i] {
			continue
		}
		if used > 0 {
			line.WriteString(strings.Repeat(" ", gap))
			used += gap
		}
		width := t.widths[i]
		if cut {
			width = min(width, t.a.out.width-used)
			if runewidth.StringWidth(cell) > width {
				cell = runewidth.Truncate(cell, width, "…")
			}
		}
		blank := strings.Repeat(" ", max(0, width-runewidth.StringWidth(cell)))
		used += runewidth.StringWidth(cell) + len(blank)
		if cell = t.a.paint(cell); t.right[i] {
			line.WriteString(blank + cell)
		} else {
			line.WriteString(cell + blank)
		}
		if cut && used+gap >= t.a.out.width {
			break
		}
	}
	_, err := fmt.Fprintln(t.a.stdout(), strings.TrimRight(line.String(), " "))
	return err
}

// alarms are the words of cells that are painted on a terminal.
var alarms = map[string]string{
	"NO SERVER": "31", "dead": "31", "critical": "31", "gone": "31", "failed": "31",
	"behind": "33", "paused": "33", "held": "33", "draining": "33", "warning": "33", "ended": "33",
	"running": "32", "ok": "32", "done": "32",
}

// paint colors a cell by its first word.
func (a *app) paint(cell string) string {
	if a.noColor || !a.out.terminal {
		return cell
	}
	for word, color := range alarms {
		if cell == word || strings.HasPrefix(cell, word+" ") {
			return "\x1b[" + color + "m" + cell + "\x1b[0m"
		}
	}
	return cell
}

// fields writes names and values, one pair a line, and leaves out empty values.
func (a *app) fields(w io.Writer, pairs ...string) error {
	width := 0
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" && pairs[i+1] != "-" {
			width = max(width, len(pairs[i]))
		}
	}
	for i := 0; i < len(pairs); i += 2 {
		value := safe(pairs[i+1], false)
		if value == "" || value == "-" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%-*s  %s\n", width, pairs[i], a.paint(value)); err != nil {
			return err
		}
	}
	return nil
}
