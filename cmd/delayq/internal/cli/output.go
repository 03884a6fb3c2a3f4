package cli

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// The values of --output.
const (
	formatTable = "table"
	formatWide  = "wide"
	formatJSON  = "json"
	formatJSONL = "jsonl"
	formatID    = "id"
)

var formats = []string{formatTable, formatWide, formatJSON, formatJSONL, formatID}

// An input is stdin, and whether a person types there.
type input struct {
	io.Reader
	terminal bool
}

// An output is stdout or stderr, and the terminal that it may be.
type output struct {
	io.Writer
	terminal bool
	width    int // columns; 0: unknown
}

func (a *app) stdout() *bufio.Writer {
	if a.buffer == nil {
		a.buffer = bufio.NewWriterSize(a.out, 64<<10)
	}
	return a.buffer
}

func (a *app) flush() error { return a.stdout().Flush() }

// say writes a line to stderr.
func (a *app) say(format string, args ...any) {
	fmt.Fprintln(a.err, safe(fmt.Sprintf(format, args...), true))
}

// tabular reports whether the output is for people.
func (a *app) tabular() bool { return a.format == formatTable || a.format == formatWide }

// A view says how records of one kind are written.
type view[T any] struct {
	record  string // schema of a record, for example delayq.job/1
	list    string // schema of a list, for example delayq.jobs/1
	field   string // name of the list in JSON
	columns []column[T]
	id      func(T) string // as it is; nil: the records have none
	in      func(T) string // what the ID is in, for -o id; nil: nothing
}

// A column of a table.
type column[T any] struct {
	head  string
	cell  func(T) string
	right bool // aligned to the right
	wide  bool // only with -o wide
	minor bool // left out on a narrow terminal
}

// A printer writes a list of records, one after another, as --output asks.
type printer[T any] struct {
	a     *app
	v     view[T]
	table *table
	n     int
}

// lists returns the printer of a list.
func lists[T any](a *app, v view[T]) (*printer[T], error) {
	p := &printer[T]{a: a, v: v}
	switch {
	case a.format == formatID && v.id == nil:
		return nil, usage("-o id: %s have no ID", v.field)
	case a.tabular():
		var columns []column[T]
		p.table = &table{a: a}
		for _, c := range v.columns {
			if !c.wide || a.format == formatWide {
				columns = append(columns, c)
				p.table.heads = append(p.table.heads, c.head)
				p.table.right = append(p.table.right, c.right)
				p.table.minor = append(p.table.minor, c.minor || c.wide)
			}
		}
		p.v.columns = columns
	}
	return p, nil
}

// row writes a record.
func (p *printer[T]) row(record T) error {
	w := p.a.stdout()
	var err error
	switch p.a.format {
	case formatID:
		line := idLine(p.v.id(record))
		if p.v.in != nil {
			line = idLine(p.v.in(record)) + "\t" + line
		}
		_, err = fmt.Fprintln(w, line)
	case formatJSONL:
		err = writeObject(w, p.v.record, record)
		if err == nil {
			err = w.WriteByte('\n')
		}
	case formatJSON:
		if p.n == 0 {
			p.head()
		} else {
			fmt.Fprint(w, ",")
		}
		fmt.Fprint(w, "\n    ")
		err = writeIndented(w, "", record, "    ")
	default:
		cells := make([]string, len(p.v.columns))
		for i, c := range p.v.columns {
			cells[i] = c.cell(record)
		}
		err = p.table.add(cells)
	}
	p.n++
	return err
}

func (p *printer[T]) head() {
	fmt.Fprintf(p.a.stdout(), "{\n  \"schema\": %q,\n  %q: [", p.v.list, p.v.field)
}

// flush lets a reader have what has been written so far.
func (p *printer[T]) flush() error {
	if p.table != nil {
		if err := p.table.end(); err != nil {
			return err
		}
	}
	return p.a.flush()
}

// end writes what follows the last record. JSON has the fields of more too, which can be nil.
func (p *printer[T]) end(more any) error {
	w := p.a.stdout()
	switch {
	case p.table != nil:
		return p.table.end()
	case p.a.format != formatJSON:
		return nil
	case p.n == 0:
		p.head()
		fmt.Fprint(w, "]")
	default:
		fmt.Fprint(w, "\n  ]")
	}
	if more != nil {
		text, err := json.Marshal(more)
		if err != nil {
			return err
		}
		if len(text) > len("{}") {
			var out bytes.Buffer
			if err := json.Indent(&out, text, "", "  "); err != nil {
				return err
			}
			fmt.Fprintf(w, ",%s", bytes.TrimSuffix(bytes.TrimPrefix(out.Bytes(), []byte("{")), []byte("\n}")))
		}
	}
	_, err := fmt.Fprintln(w, "\n}")
	return err
}

// all writes a whole list.
func all[T any](a *app, v view[T], list []T, more any) error {
	p, err := lists(a, v)
	if err != nil {
		return err
	}
	for _, record := range list {
		if err := p.row(record); err != nil {
			return err
		}
	}
	return p.end(more)
}

// object writes one record. id is its ID as it is, or "". people writes the record for people.
func object(a *app, schema string, record any, id string, people func(w io.Writer) error) error {
	w := a.stdout()
	switch a.format {
	case formatID:
		if id == "" {
			return usage("-o id: this has no ID")
		}
		_, err := fmt.Fprintln(w, idLine(id))
		return err
	case formatJSONL:
		if err := writeObject(w, schema, record); err != nil {
			return err
		}
		return w.WriteByte('\n')
	case formatJSON:
		if err := writeIndented(w, schema, record, ""); err != nil {
			return err
		}
		return w.WriteByte('\n')
	}
	return people(w)
}

// writeObject writes a record as one line of JSON that begins with its schema.
func writeObject(w io.Writer, schema string, record any) error {
	text, err := marshal(record)
	if err != nil {
		return err
	}
	if schema != "" {
		head := `{"schema":` + strconv.Quote(schema)
		if len(text) > len("{}") {
			head += ","
		}
		text = append([]byte(head), text[1:]...)
	}
	_, err = w.Write(text)
	return err
}

// writeIndented is writeObject with a line for each field.
func writeIndented(w io.Writer, schema string, record any, indent string) error {
	var line, out bytes.Buffer
	if err := writeObject(&line, schema, record); err != nil {
		return err
	}
	if err := json.Indent(&out, line.Bytes(), indent, "  "); err != nil {
		return err
	}
	_, err := w.Write(out.Bytes())
	return err
}

// marshal is json.Marshal that leaves <, > and & as they are, and escapes whatever a terminal may
// take for a command, such as U+009B.
func marshal(v any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	text := bytes.TrimSuffix(out.Bytes(), []byte("\n"))
	hidden := func(r rune) bool { return !unicode.IsGraphic(r) }
	if err != nil || !bytes.ContainsFunc(text, hidden) {
		return text, err
	}
	var plain bytes.Buffer // beyond ASCII, JSON has only the contents of strings
	for _, r := range string(text) {
		switch high, low := utf16.EncodeRune(r); {
		case !hidden(r):
			plain.WriteRune(r)
		case high != utf8.RuneError:
			fmt.Fprintf(&plain, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&plain, `\u%04x`, r)
		}
	}
	return plain.Bytes(), nil
}

// encoded is in front of a name or an ID that is not shown as it is.
const encoded = "base64:"

// idText writes an ID so that idOf reads the same one, whatever its bytes are.
func idText(id string) string {
	if id != "" && utf8.ValidString(id) && !strings.HasPrefix(id, encoded) && !strings.HasPrefix(id, "-") &&
		!strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsGraphic(r) }) && strings.TrimSpace(id) == id {
		return id
	}
	return encoded + base64.StdEncoding.EncodeToString([]byte(id))
}

// plainSigns are the signs that mean nothing to a shell, in the middle of a word.
const plainSigns = "_@%+=:,./-"

// shellWord writes a name or an ID as one word that no shell, xargs or command line takes for
// something else: not as a command, a pattern, a variable, a quote or a flag. For all else it is
// idText.
func shellWord(id string) string {
	strange := func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(plainSigns, r)
	}
	if id == "" || strings.ContainsRune("-=%", rune(id[0])) || strings.ContainsFunc(id, strange) || !utf8.ValidString(id) {
		return encoded + base64.StdEncoding.EncodeToString([]byte(id))
	}
	return idText(id)
}

// slotID ends the IDs of jobs that schedules make.
var slotID = regexp.MustCompile(`!\d{12,}$`)

// idLine is shellWord for a line of -o id, which has the jobs of schedules as they are. "!" means
// something only in what is typed.
func idLine(id string) string {
	if slot := slotID.FindString(id); slot != "" {
		if name := strings.TrimSuffix(id, slot); shellWord(name) == name {
			return id
		}
	}
	return shellWord(id)
}

// idOf reads an ID from the command line or from a line of -o id.
func idOf(text string) (string, error) {
	rest, ok := strings.CutPrefix(text, encoded)
	if !ok {
		return text, nil
	}
	id, err := base64.StdEncoding.DecodeString(rest)
	if err != nil {
		return "", usage("%q: %v; a name or an ID that begins with %q is written in base64 behind it", text, err, encoded)
	}
	return string(id), nil
}

// idsOf is idOf for several.
func idsOf(texts []string) ([]string, error) {
	ids := make([]string, len(texts))
	for i, text := range texts {
		id, err := idOf(text)
		if err != nil {
			return nil, err
		}
		ids[i] = id
	}
	return ids, nil
}

// safe replaces what would move the cursor of a terminal or fill several rows of a table.
func safe(text string, lines bool) string {
	bad := func(r rune) bool { return r == utf8.RuneError || !unicode.IsGraphic(r) && !(lines && r == '\n') }
	if !strings.ContainsFunc(text, bad) {
		return text
	}
	var b strings.Builder
	for at := 0; at < len(text); {
		r, size := utf8.DecodeRuneInString(text[at:])
		if bad(r) {
			quoted := strconv.QuoteToASCII(text[at : at+size])
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteRune(r)
		}
		at += size
	}
	return b.String()
}

// number writes a whole number with commas: 1,204,551.
func number[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	for at := len(digits) - 3; at > 0 && digits[at-1] != '-'; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

// bytesText writes a size: 212 B, 1.5 KiB.
func bytesText(n int) string {
	switch {
	case n < 1<<10:
		return strconv.Itoa(n) + " B"
	case n < 1<<20:
		return strconv.FormatFloat(float64(n)/(1<<10), 'f', 1, 64) + " KiB"
	case n < 1<<30:
		return strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64) + " MiB"
	}
	return strconv.FormatFloat(float64(n)/(1<<30), 'f', 1, 64) + " GiB"
}

// orDash writes a dash for an empty text.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// quoted writes a word so that a shell reads the same word.
func quoted(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/@%+=,", r)
	}) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
