package web

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// shownBytes is how much of a payload a page shows, decoded or not. The download has all of it.
const shownBytes = 64 << 10

// A PayloadOption says how payloads are shown: a [Decoder] or [Redact].
type PayloadOption interface{ applyPayload(*payloadRule) }

// A Decoder turns a payload into text for people. Decode returns an error if the payload is not of
// its kind; then the next decoder is tried.
type Decoder struct {
	Name   string // for example "JSON"
	Decode func(topic string, payload []byte) (string, error)
}

func (d Decoder) applyPayload(r *payloadRule) { r.decoders = append(r.decoders, d) }

// The decoders of the package. JSON and Msgpack keep the order of the fields and all digits of
// numbers. Text accepts UTF-8. Hex accepts everything.
var (
	JSON    = Decoder{"JSON", func(_ string, b []byte) (string, error) { return jsonText(b, nil) }}
	Msgpack = Decoder{"msgpack", func(_ string, b []byte) (string, error) { return msgpackText(b, nil) }}
	Text    = Decoder{"text", func(_ string, b []byte) (string, error) { return plainText(b) }}
	Hex     = Decoder{"hex", func(_ string, b []byte) (string, error) { return hex.Dump(b), nil }}
)

// Redact hides the values of fields with these names, at any depth and in any case, in payloads
// that are JSON or msgpack. Payloads of the same topics that are neither are hidden as a whole.
// With it, the page shows only that view of these payloads: no raw one, no download, and no search
// in them.
func Redact(fields ...string) PayloadOption { return redaction(fields) }

type redaction []string

func (names redaction) applyPayload(r *payloadRule) {
	r.redacted = true
	if r.hide == nil {
		r.hide = make(map[string]bool)
	}
	for _, name := range names {
		r.hide[strings.ToLower(name)] = true
	}
}

type payloadRule struct {
	pattern  string
	decoders []Decoder
	redacted bool
	hide     map[string]bool // in lower case
}

// Payload says how to show the payloads of the topics that match a pattern of [path.Match], such as
// "order:*". The first rule that matches a topic applies. Its decoders are tried in turn; without
// any, and for topics without a rule, JSON, Msgpack, Text and Hex are. With [Redact], only JSON and
// Msgpack can be among them.
func Payload(pattern string, opts ...PayloadOption) Option {
	return func(o *options) {
		rule := payloadRule{pattern: pattern}
		if _, err := path.Match(pattern, ""); err != nil {
			o.refuse("Payload(%q): %w", pattern, err)
		}
		for _, opt := range opts {
			if opt == nil {
				o.refuse("Payload(%q): an option is nil", pattern)
				continue
			}
			opt.applyPayload(&rule)
		}
		for _, d := range rule.decoders {
			if d.Decode == nil {
				o.refuse("Payload(%q): decoder %q has no function", pattern, d.Name)
			}
			if rule.redacted && d.Name != JSON.Name && d.Name != Msgpack.Name {
				o.refuse("Payload(%q): decoder %q cannot redact; use JSON or Msgpack", pattern, d.Name)
			}
		}
		o.payloads = append(o.payloads, rule)
	}
}

// rule returns how payloads of a topic are shown.
func (o *options) rule(topic string) payloadRule {
	for _, rule := range o.payloads {
		if ok, _ := path.Match(rule.pattern, topic); ok {
			return rule
		}
	}
	return payloadRule{}
}

// shownPayload is a payload as the page shows it.
type shownPayload struct {
	Size     int    `json:"size"`
	Format   string `json:"format,omitempty"` // the decoder
	Text     string `json:"text,omitempty"`
	Raw      []byte `json:"base64,omitempty"`
	Hex      string `json:"-"`
	Cut      bool   `json:"cut,omitempty"` // only the first 64 KiB are shown
	Hidden   bool   `json:"hidden,omitempty"`
	Redacted bool   `json:"redacted,omitempty"`
}

// show decodes a payload.
func (rule *payloadRule) show(topic string, payload []byte) (p shownPayload) {
	p.Size, p.Redacted = len(payload), rule.redacted
	defer func() {
		if recover() != nil { // a decoder of the program
			p.Format, p.Text = "", ""
			p.Hidden = rule.redacted
		}
	}()
	decoders := rule.decoders
	if len(decoders) == 0 {
		decoders = []Decoder{JSON, Msgpack, Text, Hex}
	}
	whole := payload
	if !rule.redacted {
		p.Raw = payload[:min(len(payload), shownBytes)]
		p.Hex = hex.Dump(p.Raw)
		p.Cut = len(payload) > shownBytes
	}
	for _, d := range decoders {
		text, err := "", errors.New("not redacted")
		switch {
		case !rule.redacted:
			if d.Name == Hex.Name {
				whole = p.Raw // a dump is several times as long
			}
			text, err = d.Decode(topic, whole)
		case d.Name == JSON.Name:
			text, err = jsonText(payload, rule.hide)
		case d.Name == Msgpack.Name:
			text, err = msgpackText(payload, rule.hide)
		}
		if err != nil {
			continue
		}
		if p.Format = d.Name; len(text) > shownBytes {
			cut := shownBytes
			for cut > 0 && !utf8.RuneStart(text[cut]) {
				cut--
			}
			text, p.Cut = text[:cut], true
		}
		p.Text = text
		return p
	}
	p.Hidden = rule.redacted
	return p
}

func plainText(b []byte) (string, error) {
	if !utf8.Valid(b) || bytes.ContainsFunc(b, func(r rune) bool { return r < ' ' && r != '\n' && r != '\r' && r != '\t' }) {
		return "", errors.New("not text")
	}
	return string(b), nil
}

const (
	redactedText = `"•••"`
	maxDepth     = 100     // of arrays and maps in each other
	maxText      = 1 << 20 // bytes of decoded text that are made at most
)

// A printer writes an indented tree in the notation of JSON.
type printer struct {
	out   bytes.Buffer
	depth int
	hide  map[string]bool
}

var errDeep = fmt.Errorf("more than %d levels", maxDepth)

// all writes the n elements of an array or a map, or as many as more reports.
func (p *printer) all(open, end byte, more func(i int) bool, element func() error) error {
	if p.depth++; p.depth > maxDepth {
		return errDeep
	}
	p.out.WriteByte(open)
	n := 0
	for ; more(n) && p.out.Len() < maxText; n++ {
		if n > 0 {
			p.out.WriteByte(',')
		}
		p.line()
		if err := element(); err != nil {
			return err
		}
	}
	if p.depth--; n > 0 {
		p.line()
	}
	p.out.WriteByte(end)
	return nil
}

func (p *printer) line() {
	p.out.WriteByte('\n')
	for range p.depth {
		p.out.WriteString("  ")
	}
}

func (p *printer) text(s string) {
	e := json.NewEncoder(&p.out)
	e.SetEscapeHTML(false) // html/template does that
	_ = e.Encode(s)        // of a string into memory
	p.out.Truncate(p.out.Len() - 1)
}

// jsonText returns JSON with indentation.
func jsonText(b []byte, hide map[string]bool) (string, error) {
	if !json.Valid(b) {
		return "", errors.New("not JSON")
	}
	p := &printer{hide: hide}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := p.json(d, false); err != nil {
		return "", err
	}
	return p.out.String(), nil
}

// json writes the next value of a decoder, or hides it.
func (p *printer) json(d *json.Decoder, hidden bool) error {
	if hidden {
		var skipped json.RawMessage
		p.out.WriteString(redactedText)
		return d.Decode(&skipped)
	}
	token, err := d.Token()
	if err != nil {
		return err
	}
	switch t := token.(type) {
	case json.Delim:
		more := func(int) bool { return d.More() }
		if t == '[' {
			err = p.all('[', ']', more, func() error { return p.json(d, false) })
		} else {
			err = p.all('{', '}', more, func() error {
				key, err := d.Token()
				if err != nil {
					return err
				}
				name, _ := key.(string) // it is one in an object
				p.text(name)
				p.out.WriteString(": ")
				return p.json(d, p.hide[strings.ToLower(name)])
			})
		}
		if err == nil && !d.More() {
			_, err = d.Token() // the end
		}
		return err
	case string:
		p.text(t)
	case json.Number:
		p.out.WriteString(t.String())
	case bool:
		p.out.WriteString(strconv.FormatBool(t))
	default:
		p.out.WriteString("null")
	}
	return nil
}

// msgpackText returns msgpack in the notation of JSON. Bytes are hexadecimal, times are text, and
// what else JSON has no notation for is in angle brackets.
func msgpackText(b []byte, hide map[string]bool) (string, error) {
	if len(b) == 0 {
		return "", io.ErrUnexpectedEOF
	}
	r := bytes.NewReader(b)
	d := msgpack.NewDecoder(r)
	p := &printer{hide: hide}
	code, err := d.PeekCode()
	if err != nil {
		return "", err
	}
	// Nearly every byte begins a msgpack value. A lone number is more likely to be text.
	if len(b) > 1 && msgpcode.IsFixedNum(code) {
		return "", errors.New("not msgpack")
	}
	if err := p.msgpack(d); err != nil {
		return "", err
	}
	if r.Len() > 0 {
		if p.out.Len() >= maxText {
			return p.out.String(), nil
		}
		return "", errors.New("bytes after the value")
	}
	return p.out.String(), nil
}

func (p *printer) msgpack(d *msgpack.Decoder) error {
	code, err := d.PeekCode()
	if err != nil {
		return err
	}
	counted := func(n int) func(int) bool { return func(i int) bool { return i < n } }
	switch {
	case msgpcode.IsFixedArray(code), code == msgpcode.Array16, code == msgpcode.Array32:
		n, err := d.DecodeArrayLen()
		if err != nil {
			return err
		}
		return p.all('[', ']', counted(n), func() error { return p.msgpack(d) })
	case msgpcode.IsFixedMap(code), code == msgpcode.Map16, code == msgpcode.Map32:
		n, err := d.DecodeMapLen()
		if err != nil {
			return err
		}
		return p.all('{', '}', counted(n), func() error { return p.msgpackField(d) })
	case msgpcode.IsExt(code):
		return p.msgpackExt(d)
	case msgpcode.IsBin(code):
		v, err := d.DecodeBytes()
		if err != nil {
			return err
		}
		p.text("0x" + hex.EncodeToString(v[:min(len(v), maxText)]))
		return nil
	}
	v, err := d.DecodeInterface()
	if err != nil {
		return err
	}
	switch v := v.(type) {
	case nil:
		p.out.WriteString("null")
	case string:
		p.text(v)
	default: // numbers and bool; NaN and infinity are not JSON, but people can read them
		fmt.Fprint(&p.out, v)
	}
	return nil
}

// msgpackField writes a key and its value.
func (p *printer) msgpackField(d *msgpack.Decoder) error {
	from := p.out.Len()
	code, err := d.PeekCode()
	if err != nil {
		return err
	}
	name := ""
	if msgpcode.IsString(code) {
		if name, err = d.DecodeString(); err == nil {
			p.text(name)
		}
	} else {
		err = p.msgpack(d) // a key of another type has no name
	}
	if err != nil {
		return err
	}
	if p.out.Len() == from {
		p.text("")
	}
	p.out.WriteString(": ")
	if p.hide[strings.ToLower(name)] {
		p.out.WriteString(redactedText)
		return d.Skip()
	}
	return p.msgpack(d)
}

// msgpackExt writes a time, or the type and the bytes of another extension.
func (p *printer) msgpackExt(d *msgpack.Decoder) error {
	raw, err := d.DecodeRaw()
	if err != nil {
		return err
	}
	var at time.Time
	if msgpack.Unmarshal(raw, &at) == nil {
		p.text(at.UTC().Format(time.RFC3339Nano))
		return nil
	}
	p.text("<extension 0x" + hex.EncodeToString(raw[:min(len(raw), shownBytes)]) + ">")
	return nil
}

// body reads the payload of a form in one of its formats.
func (v *view) body() ([]byte, error) {
	// Browsers send line ends as CR LF, whatever was typed.
	text := strings.ReplaceAll(v.form("payload"), "\r\n", "\n")
	refuse := func(err error) error {
		return &refusal{http.StatusBadRequest, v.T("error.payload", v.form("format"), err)}
	}
	switch v.form("format") {
	case "", "text":
		return []byte(text), nil
	case "json":
		if !json.Valid([]byte(text)) {
			return nil, refuse(errors.New("invalid"))
		}
		return []byte(text), nil
	case "msgpack":
		return packJSON(text, refuse)
	case "base64":
		b, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), ""))
		if err != nil {
			return nil, refuse(err)
		}
		return b, nil
	}
	return nil, refuse(errors.New("unknown"))
}

// packJSON turns JSON into msgpack. Whole numbers stay whole.
func packJSON(text string, refuse func(error) error) ([]byte, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return nil, refuse(err)
	}
	if d.More() {
		return nil, refuse(errors.New("more than one value"))
	}
	tree, err := plainNumbers(tree)
	if err != nil {
		return nil, refuse(err)
	}
	var b strings.Builder
	e := msgpack.NewEncoder(&b)
	e.SetSortMapKeys(true)
	e.UseCompactInts(true)
	if err := e.Encode(tree); err != nil {
		return nil, refuse(err)
	}
	return []byte(b.String()), nil
}

// plainNumbers replaces the numbers of a JSON tree by those of Go.
func plainNumbers(tree any) (any, error) {
	var err error
	switch t := tree.(type) {
	case json.Number:
		if n, bad := strconv.ParseInt(t.String(), 10, 64); bad == nil {
			return n, nil
		}
		if n, bad := strconv.ParseUint(t.String(), 10, 64); bad == nil {
			return n, nil
		}
		if !strings.ContainsAny(t.String(), ".eE") {
			return nil, fmt.Errorf("the number %s is too large", t)
		}
		return t.Float64()
	case []any:
		for i := range t {
			if t[i], err = plainNumbers(t[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range t {
			if t[k], err = plainNumbers(t[k]); err != nil {
				return nil, err
			}
		}
	}
	return tree, nil
}
