package web

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A shownOutput is what a handler attached to a run, as the page shows it. It is shown to those who
// may see payloads, unless the rule of the topic redacts them, because it can repeat them.
type shownOutput struct {
	Text string `json:"text"`
	Size int    `json:"size"`
	Cut  bool   `json:"cut,omitempty"` // Text is only its end
}

// showOutput returns an output of that size, or the end of it. It returns nil if there is none.
func showOutput(output []byte, size int) *shownOutput {
	if len(output) == 0 {
		return nil
	}
	o := &shownOutput{Size: size, Cut: size > len(output)}
	for n := 0; o.Cut && n < utf8.UTFMax-1 && len(output) > 0 && !utf8.RuneStart(output[0]); n++ {
		output = output[1:] // the rest of a character
	}
	o.Text = visibleLines(strings.TrimRight(string(output), "\n"))
	return o
}

// visibleLines returns lines with an escape for each character that cannot be seen.
func visibleLines(text string) string {
	var b strings.Builder
	for i, r := range text {
		switch {
		case r == '\n', r == '\t', unicode.IsPrint(r) && r != utf8.RuneError:
			b.WriteRune(r)
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], "\uFFFD"):
			b.WriteString(`\x` + strconv.FormatUint(0x100|uint64(text[i]), 16)[1:])
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}
