package web

import (
	"html/template"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// T returns a text of the catalog with its placeholders {0}, {1} … filled.
func (v *view) T(key string, args ...any) string { return translate(v.Lang, key, args...) }

// Label returns a text of the catalog that begins with a capital, for where CSS cannot write one.
func (v *view) Label(key string) string {
	text := v.T(key)
	first, n := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[n:]
}

// Has reports whether the catalog has a text.
func (v *view) Has(key string) bool { return catalogs["en"][key] != "" }

// Languages lists the languages other than the one of the page.
func (v *view) Languages() (list []string) {
	for _, tag := range languages {
		if tag != v.Lang {
			list = append(list, tag)
		}
	}
	return list
}

// LanguageName returns the name of a language in that language.
func (v *view) LanguageName(tag string) string { return catalogs[tag]["language"] }

// N returns a number with separators of thousands.
func (v *view) N(n any) string { return number(n) }

// Time returns a time element, or a dash for the zero time.
func (v *view) Time(t time.Time) template.HTML {
	if t.IsZero() {
		return `<span class="none">–</span>`
	}
	t = t.UTC()
	return template.HTML(`<time datetime="` + t.Format("2006-01-02T15:04:05.000Z") + `">` + t.Format("2006-01-02 15:04:05") + ` UTC</time>`)
}

// Span returns how far a time is from another one, in words: in 3h 2m, 38s ago.
func (v *view) Span(at, t time.Time) string {
	switch d := t.Sub(at); {
	case t.IsZero():
		return ""
	case d >= time.Second:
		return v.T("time.in", short(d))
	case d <= -time.Second:
		return v.T("time.ago", short(-d))
	}
	return v.T("time.now")
}

// Short returns a duration.
func (v *view) Short(d time.Duration) string { return short(d) }

// Safe returns a text that shows where control characters, invisible characters and invalid UTF-8
// are.
func (v *view) Safe(text string) string { return visible(text) }

// Escaped returns an ID as a value of a form, which keeps every byte.
func (v *view) Escaped(text string) string { return url.QueryEscape(text) }

// visible returns a text as it is if all of it can be seen, and otherwise with escapes as in Go.
func visible(text string) string {
	if text == "" {
		return `""`
	}
	clean := utf8.ValidString(text) && strings.TrimSpace(text) == text
	if clean && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return text
	}
	return strconv.Quote(text)
}

// number returns an integer with separators of thousands.
func number(n any) string {
	var text string
	if p, ok := n.(*float64); ok && p != nil {
		n = *p
	}
	switch n := n.(type) {
	case int:
		text = strconv.Itoa(n)
	case int64:
		text = strconv.FormatInt(n, 10)
	case float64:
		if n < 10 {
			return strconv.FormatFloat(n, 'f', 1, 64)
		}
		text = strconv.FormatFloat(n, 'f', 0, 64)
	default:
		return "?"
	}
	sign := ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return sign + text
}

// short returns a duration with at most two units: 3d 4h, 41m, 38.2s, 4ms.
func short(d time.Duration) string {
	if d < 0 {
		return "-" + short(-d)
	}
	two := func(a int64, ua string, b int64, ub string) string {
		text := strconv.FormatInt(a, 10) + ua
		if b > 0 {
			text += " " + strconv.FormatInt(b, 10) + ub
		}
		return text
	}
	s := int64(d / time.Second)
	switch {
	case d >= 48*time.Hour:
		return two(s/86400, "d", s%86400/3600, "h")
	case d >= time.Hour:
		return two(s/3600, "h", s%3600/60, "m")
	case d >= time.Minute:
		return two(s/60, "m", s%60, "s")
	case d >= 10*time.Second:
		return strconv.FormatInt(s, 10) + "s"
	case d >= time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
	case d == 0:
		return "0s"
	case d < time.Millisecond:
		return strconv.FormatInt(d.Microseconds(), 10) + "µs"
	}
	return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
}
