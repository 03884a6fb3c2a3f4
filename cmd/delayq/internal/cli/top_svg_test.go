package cli

import (
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/require"
)

// The picture in the manual is the view of the snapshot.
func TestTopPicture(t *testing.T) {
	m := snapshot(t, 120, 13)
	picture := drawing(m.View().Content, m.width, m.height)
	compare(t, filepath.Join("..", "..", "..", "..", "docs", "top.svg"), picture)
	manual, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "cli.md"))
	require.NoError(t, err)
	require.Contains(t, string(manual), "](top.svg)")
}

// Sizes of a cell of the picture, in pixels.
const (
	cellWidth  = 8.4
	cellHeight = 19
	margin     = 12
)

var (
	pieces  = regexp.MustCompile(`\S+( \S+)*`) // between two spaces or more
	sgr     = regexp.MustCompile(`\x1b\[([0-9;]*)m`)
	classes = map[string]string{"1": "b", "2": "f", "31": "r", "32": "g", "33": "y"}
)

// drawing returns a frame as an SVG. Each piece of text has its place, so that no font moves the
// columns.
func drawing(frame string, width, height int) string {
	var out strings.Builder
	w, h := float64(width)*cellWidth+2*margin, height*cellHeight+2*margin
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" viewBox="0 0 %.0f %d" role="img">
<title>delayq top: the topics of a shop, those in trouble first</title>
<style>
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d0d7de}
.b{font-weight:bold;fill:#fff}.f{fill:#7d8590}.r{fill:#ff7b72}.g{fill:#7ee787}.y{fill:#e3b341}
</style>
<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
`, w, h, w, h)
	for row, line := range strings.Split(frame, "\n") {
		column := 0
		y := margin + row*cellHeight + 14
		attribute := ""
		write := func(text string) {
			for _, at := range pieces.FindAllStringIndex(text, -1) {
				piece := text[at[0]:at[1]]
				x := margin + float64(column+ansi.StringWidth(text[:at[0]]))*cellWidth
				fmt.Fprintf(&out, "<text x=\"%.1f\" y=\"%d\" textLength=\"%.1f\"%s>%s</text>\n",
					x, y, float64(ansi.StringWidth(piece))*cellWidth, attribute, html.EscapeString(piece))
			}
			column += ansi.StringWidth(text)
		}
		for line != "" {
			at := sgr.FindStringSubmatchIndex(line)
			if at == nil {
				write(line)
				break
			}
			write(line[:at[0]])
			attribute = ""
			if class := classes[line[at[2]:at[3]]]; class != "" {
				attribute = ` class="` + class + `"`
			}
			line = line[at[1]:]
		}
	}
	out.WriteString("</svg>\n")
	return out.String()
}
