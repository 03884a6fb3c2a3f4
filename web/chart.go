package web

import (
	"fmt"
	"html/template"
	"strings"
)

// bars returns a bar chart as SVG: a bar for each value, in a box of the given size. label is what
// a screen reader says. Bars have a title for the pointer; title may be nil. All values are numbers
// that the page has computed.
func bars(values []int64, width, height int, label string, title func(i int) string) template.HTML {
	var top int64
	for _, n := range values {
		top = max(top, n)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="bars" viewBox="0 0 %d %d" preserveAspectRatio="none" role="img" aria-label="%s">`,
		width, height, template.HTMLEscapeString(label))
	step := float64(width) / float64(max(len(values), 1))
	for i, n := range values {
		h := 1.0
		class := "zero"
		if n > 0 {
			h, class = max(2, float64(height)*float64(n)/float64(top)), "bar"
		}
		fmt.Fprintf(&b, `<rect class="%s" x="%.2f" y="%.2f" width="%.2f" height="%.2f">`, class, float64(i)*step, float64(height)-h, step*0.8, h)
		if title != nil {
			fmt.Fprintf(&b, `<title>%s</title>`, template.HTMLEscapeString(title(i)))
		}
		b.WriteString(`</rect>`)
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}
