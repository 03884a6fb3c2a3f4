package worker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/delayq/delayq/cmd/delayq/internal/values"
)

// A Mistake is something in a file that cannot be as it is.
type Mistake struct {
	File         string
	Line, Column int // from 1; 0: the file as a whole
	Text         string
}

// String returns a line such as "worker.yaml:12:5: retry: …".
func (m Mistake) String() string {
	if m.Line == 0 {
		return m.File + ": " + m.Text
	}
	return fmt.Sprintf("%s:%d:%d: %s", m.File, m.Line, m.Column, m.Text)
}

// The bounds of a file.
const (
	mostFile     = 1 << 20 // bytes
	mostMistakes = 100     // that are reported
	mostShown    = 60      // bytes of a value in the text of a mistake
)

// forever is the longest duration of delayq.
const forever = 36_500 * 24 * time.Hour

// A reader reads a file and collects the mistakes in it.
type reader struct {
	file     string // as it was given
	dir      string // of the file; relative paths in it are relative to this
	getenv   func(string) string
	mistakes []Mistake
	secrets  []string // that were read
}

// at notes a mistake. Nothing that may be secret belongs into its text.
func (r *reader) at(n *yaml.Node, format string, args ...any) {
	m := Mistake{File: r.file, Text: fmt.Sprintf(format, args...)}
	if n != nil {
		m.Line, m.Column = max(n.Line, 1), max(n.Column, 1)
	}
	r.mistakes = append(r.mistakes, m)
}

// sorted returns the mistakes in the order of the file.
func (r *reader) sorted() []Mistake {
	slices.SortStableFunc(r.mistakes, func(a, b Mistake) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	if n := len(r.mistakes); n > mostMistakes {
		r.mistakes = append(r.mistakes[:mostMistakes], Mistake{File: r.file, Text: fmt.Sprintf("%d more mistakes", n-mostMistakes)})
	}
	return r.mistakes
}

var yamlLine = regexp.MustCompile(`^line (\d+): `)

// parse reads the YAML of a file. It returns nil if there is nothing to look at.
func (r *reader) parse(text []byte) *yaml.Node {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	err := dec.Decode(&doc)
	switch {
	case errors.Is(err, io.EOF):
		r.at(nil, "the file is empty")
		return nil
	case err != nil:
		what, place := strings.TrimPrefix(err.Error(), "yaml: "), &yaml.Node{Line: 1, Column: 1}
		if m := yamlLine.FindStringSubmatch(what); m != nil {
			place.Line, _ = strconv.Atoi(m[1])
			what = strings.TrimPrefix(what, m[0])
		}
		r.at(place, "not YAML: %s", what)
		return nil
	}
	if dec.Decode(&more) == nil {
		r.at(&more, "a second document; a file has one")
	}
	return doc.Content[0]
}

// aliased returns the node that an alias stands for.
func aliased(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// kindOf names what a node is, for people.
func kindOf(n *yaml.Node) string {
	switch {
	case isNull(n):
		return "nothing"
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	}
	return "a single value"
}

// An object is a mapping whose fields are known. A nil object has no fields.
type object struct {
	*reader
	node   *yaml.Node
	fields map[string]entry
	order  []string
	known  []string
}

// An entry is a field of a mapping.
type entry struct{ key, value *yaml.Node }

// mapping reads the entries of a mapping. what names it.
func (r *reader) mapping(n *yaml.Node, what string) *object {
	o := &object{reader: r, node: n, fields: map[string]entry{}}
	if n.Kind != yaml.MappingNode {
		r.at(n, "%s: is %s; expected a mapping of names and values", what, kindOf(n))
		return o
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := aliased(n.Content[i]), aliased(n.Content[i+1])
		switch name := key.Value; {
		case key.Kind != yaml.ScalarNode || isNull(key):
			r.at(key, "%s: a name is %s; expected a single value", what, kindOf(key))
		case key.Tag == "!!merge":
			r.at(key, "%s: << is not supported; repeat the fields, or use an alias for a whole value", what)
		case o.fields[name].key != nil:
			r.at(key, "%s: is there twice; the first one is in line %d", shown(name), o.fields[name].key.Line)
		default:
			o.fields[name] = entry{key, value}
			o.order = append(o.order, name)
		}
	}
	return o
}

// shown returns a value for the text of a mistake.
func shown(value string) string {
	if len(value) > mostShown {
		value = strings.ToValidUTF8(value[:mostShown], "") + "…"
	}
	return strconv.Quote(value)
}

func (o *object) isMapping() bool { return o.node.Kind == yaml.MappingNode }

// missing notes that a field is missing, unless there is no mapping, which has been noted.
func (o *object) missing(text string) {
	if o.isMapping() {
		o.at(o.node, "%s", text)
	}
}

// has reports whether there is a field with a value.
func (o *object) has(name string) bool { return o != nil && o.fields[name].value != nil }

// key returns the node of the name of a field, or that of the object.
func (o *object) key(name string) *yaml.Node {
	if o.has(name) {
		return o.fields[name].key
	}
	return o.node
}

// get returns the value of a field, or nil if there is none.
func (o *object) get(name string) *yaml.Node {
	if o == nil {
		return nil
	}
	o.known = append(o.known, name)
	value := o.fields[name].value
	if value != nil && isNull(value) {
		o.at(o.key(name), "%s: has no value", name)
		return nil
	}
	return value
}

// end notes the fields that nobody has asked for.
func (o *object) end() {
	if o == nil {
		return
	}
	for _, name := range o.order {
		if slices.Contains(o.known, name) {
			continue
		}
		hint := ""
		if near := nearest(name, o.known); near != "" {
			hint = "; did you mean " + near + "?"
		} else if len(o.known) > 0 {
			hint = "; expected one of " + strings.Join(o.known, ", ")
		}
		o.at(o.key(name), "unknown field %s%s", shown(name), hint)
	}
}

// object returns the mapping of a field, or nil.
func (o *object) object(name string) *object {
	n := o.get(name)
	if n == nil {
		return nil
	}
	return o.mapping(n, name)
}

// each calls see for the entries of the mapping of a field, in their order, and reports whether
// there are any.
func (o *object) each(name string, see func(name string, key, value *yaml.Node)) bool {
	list := o.object(name)
	if list == nil {
		return false
	}
	if list.node.Kind == yaml.MappingNode && len(list.order) == 0 {
		o.at(o.key(name), "%s: is empty", name)
	}
	for _, name := range list.order {
		e := list.fields[name]
		if isNull(e.value) {
			o.at(e.key, "%s: has no value", shown(name))
			continue
		}
		see(name, e.key, e.value)
	}
	return len(list.order) > 0
}

// list returns the elements of the list of a field.
func (o *object) list(name string) []*yaml.Node {
	n := o.get(name)
	switch {
	case n == nil:
		return nil
	case n.Kind != yaml.SequenceNode:
		o.at(n, "%s: is %s; expected a list", name, kindOf(n))
		return nil
	case len(n.Content) == 0:
		o.at(n, "%s: is empty", name)
	}
	list := make([]*yaml.Node, len(n.Content))
	for i, c := range n.Content {
		list[i] = aliased(c)
	}
	return list
}

// scalar returns the text of a node that is a single value. what names it.
func (r *reader) scalar(n *yaml.Node, what string) (string, bool) {
	if n == nil {
		return "", false
	}
	if n.Kind != yaml.ScalarNode || isNull(n) {
		r.at(n, "%s: is %s; expected a single value", what, kindOf(n))
		return "", false
	}
	return n.Value, true
}

// text returns the single value of a field, which is not empty. It is empty if there is none.
func (o *object) text(name string) string {
	n := o.get(name)
	text, ok := o.scalar(n, name)
	if ok {
		o.notEmpty(n, name, text)
	}
	return text
}

// notEmpty notes that a value is empty, as one is whose variable was not set where the file was
// made.
func (r *reader) notEmpty(n *yaml.Node, what, text string) {
	if strings.TrimSpace(text) == "" {
		r.at(n, "%s: is empty; expected a value, or leave it out", what)
	}
}

// choice returns a value that is one of several, or "".
func (o *object) choice(name string, among ...string) string {
	text, ok := o.scalar(o.get(name), name)
	if ok && !slices.Contains(among, text) {
		o.at(o.fields[name].value, "%s: %s; expected one of %s", name, shown(text), strings.Join(among, ", "))
		return ""
	}
	return text
}

// flag returns a value that is true or false.
func (o *object) flag(name string) bool {
	text, ok := o.scalar(o.get(name), name)
	if ok && text != "true" && text != "false" {
		o.at(o.fields[name].value, "%s: %s; expected true or false", name, shown(text))
	}
	return text == "true"
}

// number returns a whole number, or standard if there is none.
func (o *object) number(name string, least, most, standard int) int {
	text, ok := o.scalar(o.get(name), name)
	if !ok {
		return standard
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		o.at(o.fields[name].value, "%s: %s; expected a number from %d to %d", name, shown(text), least, most)
		return standard
	}
	return n
}

// span returns a duration, or standard if there is none.
func (o *object) span(name string, least, most, standard time.Duration) time.Duration {
	n := o.get(name)
	if n == nil {
		return standard
	}
	d, ok := o.spanAt(n, name, least, most)
	if !ok {
		return standard
	}
	return d
}

// spanAt returns the duration of a node.
func (r *reader) spanAt(n *yaml.Node, what string, least, most time.Duration) (time.Duration, bool) {
	text, ok := r.scalar(n, what)
	if !ok {
		return 0, false
	}
	d, err := values.ParseSpan(text)
	switch {
	case err != nil || len(text) > mostShown:
		r.at(n, "%s: %s is no duration; expected a number with ms, s, m, h, d or w, such as 90s or 3d12h", what, shown(text))
		return 0, false
	case d < least || d > most:
		r.at(n, "%s: %s; expected %s to %s", what, text, spanText(least), spanText(most))
		return 0, false
	}
	return d, true
}

// spanText writes a bound.
func spanText(d time.Duration) string {
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	switch {
	case d >= 2*year && d%year == 0:
		return fmt.Sprintf("%d years", d/year)
	case d > day && d%day == 0:
		return fmt.Sprintf("%dd", d/day)
	}
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// instant returns a time, or the zero time.
func (o *object) instant(name string) time.Time {
	text, ok := o.scalar(o.get(name), name)
	if !ok {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		o.at(o.fields[name].value, "%s: %s is no time; expected one such as 2026-01-02T15:04:05Z", name, shown(text))
	}
	return t
}

// nearest returns the name that differs least from a wrong one, or "" if none is near.
func nearest(wrong string, names []string) (near string) {
	least := max(2, len(wrong)/3) + 1
	for _, name := range names {
		if d := distance(strings.ToLower(strings.ReplaceAll(wrong, "-", "_")), name); d < least {
			near, least = name, d
		}
	}
	return near
}

// distance returns how many bytes must be inserted, deleted, replaced or swapped with the next one
// (optimal string alignment). It is at most that of the first 64 bytes.
func distance(a, b string) int {
	a, b = a[:min(len(a), 64)], b[:min(len(b), 64)]
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
