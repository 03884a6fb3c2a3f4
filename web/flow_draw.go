package web

import (
	"fmt"
	"html/template"
	"strings"
)

// Sizes of the drawing of a flow, in its own units, which are pixels unless it is scaled.
const (
	boxWide, boxHigh = 190, 44
	gapWide, gapHigh = 54, 14
	edge             = 4
	titleRunes       = 25 // what fits into a box
	noteRunes        = 30
)

// draw returns the boxes as SVG, from left to right. It has no script and no style of its own.
// label is what a screen reader says; the table of the page has all that the drawing has.
func draw(boxes []box, label string) template.HTML {
	layers, rows := place(boxes)
	wide := layers*(boxWide+gapWide) - gapWide + 2*edge
	high := rows*(boxHigh+gapHigh) - gapHigh + 2*edge
	counts := make([]int, layers)
	for at := range boxes {
		counts[boxes[at].layer]++
	}
	at := func(b *box) (x, y int) { // of the left upper corner; short layers stand in the middle
		free := (rows - counts[b.layer]) * (boxHigh + gapHigh) / 2
		return edge + b.layer*(boxWide+gapWide), edge + free + b.row*(boxHigh+gapHigh)
	}
	var s strings.Builder
	fmt.Fprintf(&s, `<svg class="flow" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`,
		wide, high, wide, high, template.HTMLEscapeString(label))
	for i := range boxes {
		b := &boxes[i]
		x, y := at(b)
		for _, before := range b.after {
			from, class := &boxes[before], "line"
			if from.held && b.held {
				class = "line held"
			}
			x0, y0 := at(from)
			x0, y0 = x0+boxWide, y0+boxHigh/2
			half := (x - x0) / 2
			fmt.Fprintf(&s, `<path class="%s" d="M%d %dC%d %d %d %d %d %d"/>`, class, x0, y0, x0+half, y0, x-half, y+boxHigh/2, x, y+boxHigh/2)
		}
	}
	for i := range boxes {
		b := &boxes[i]
		x, y := at(b)
		b.draw(&s, x, y)
	}
	s.WriteString(`</svg>`)
	return template.HTML(s.String())
}

// draw writes one box at a place.
func (b *box) draw(s *strings.Builder, x, y int) {
	class := "box " + b.state
	if b.held {
		class += " held"
	}
	if b.href != "" {
		fmt.Fprintf(s, `<a href="%s">`, template.HTMLEscapeString(b.href))
	}
	fmt.Fprintf(s, `<g class="%s"><title>%s</title>`, class, template.HTMLEscapeString(b.title+" – "+b.note))
	if len(b.steps) > 1 { // several steps: a second frame behind
		fmt.Fprintf(s, `<rect class="more" x="%d" y="%d" width="%d" height="%d" rx="4"/>`, x+4, y+4, boxWide-2, boxHigh-2)
	}
	fmt.Fprintf(s, `<rect x="%d" y="%d" width="%d" height="%d" rx="4"/>`, x, y, boxWide, boxHigh)
	fmt.Fprintf(s, `<text x="%d" y="%d">%s</text>`, x+10, y+18, template.HTMLEscapeString(fit(b.title, titleRunes)))
	fmt.Fprintf(s, `<text class="small" x="%d" y="%d">%s</text></g>`, x+10, y+35, template.HTMLEscapeString(fit(b.note, noteRunes)))
	if b.href != "" {
		s.WriteString(`</a>`)
	}
}

// fit cuts a text to a number of characters.
func fit(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:most-1]) + "…"
}
