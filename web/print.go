package web

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// This file writes payloads as text. It takes nothing for granted: whoever can write to Redis has
// made them. Nothing in it recurses or grows without a bound.

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

// A printer writes an indented tree in the notation of JSON. It recurses no deeper than maxDepth.
type printer struct {
	out   bytes.Buffer
	depth int
	hide  map[string]bool // nil: nothing
}

// hides reports whether the value of a field is hidden.
func (p *printer) hides(name string) bool { return p.hide != nil && p.hide[folded(name)] }

// scalar writes a value that is neither an array nor a map, or hides it. If some fields are hidden,
// it hides a value at the top, which has no name, and a text that can be JSON with such fields.
func (p *printer) scalar(write func(), text string) {
	text = strings.TrimLeft(text, " \t\r\n")
	if p.hide != nil && (p.depth == 0 || strings.HasPrefix(text, "{") || strings.HasPrefix(text, "[")) {
		p.out.WriteString(redactedText)
		return
	}
	write()
}

var errDeep = fmt.Errorf("more than %d levels", maxDepth)

// elements writes the elements of an array or a map until more reports false.
func (p *printer) elements(open, end byte, more func(i int) bool, element func() error) error {
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
	s = s[:min(len(s), maxText)]
	e := json.NewEncoder(&p.out)
	e.SetEscapeHTML(false) // html/template does that
	_ = e.Encode(s)        // of a string into memory
	p.out.Truncate(p.out.Len() - 1)
}

// bytes writes bytes in hexadecimal. If some fields are hidden it hides all bytes, because they can
// hold anything.
func (p *printer) bytes(before string, b []byte, after string) {
	if p.hide != nil {
		p.out.WriteString(redactedText)
		return
	}
	p.text(before + "0x" + hex.EncodeToString(b[:min(len(b), shownBytes)]) + after)
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
			err = p.elements('[', ']', more, func() error { return p.json(d, false) })
		} else {
			err = p.elements('{', '}', more, func() error {
				key, err := d.Token()
				if err != nil {
					return err
				}
				name, _ := key.(string) // it is one in an object
				p.text(name)
				p.out.WriteString(": ")
				return p.json(d, p.hides(name))
			})
		}
		if err == nil && !d.More() {
			_, err = d.Token() // the end
		}
		return err
	case string:
		p.scalar(func() { p.text(t) }, t)
	case json.Number:
		p.scalar(func() { p.out.WriteString(t.String()[:min(len(t), maxText)]) }, "")
	case bool:
		p.scalar(func() { p.out.WriteString(strconv.FormatBool(t)) }, "")
	default:
		p.scalar(func() { p.out.WriteString("null") }, "")
	}
	return nil
}

// msgpackText returns msgpack in the notation of JSON. Bytes are hexadecimal and times are text.
// Any other value that JSON cannot write is in angle brackets.
func msgpackText(b []byte, hide map[string]bool) (string, error) {
	if len(b) == 0 {
		return "", io.ErrUnexpectedEOF
	}
	r := bytes.NewReader(b)
	p := &msgpackPrinter{printer: printer{hide: hide}, all: b, r: r, d: msgpack.NewDecoder(r)}
	code, err := p.d.PeekCode()
	if err != nil {
		return "", err
	}
	// Nearly every byte begins a msgpack value. A lone number is more likely to be text.
	if len(b) > 1 && msgpcode.IsFixedNum(code) {
		return "", errors.New("not msgpack")
	}
	if err := p.value(); err != nil {
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

// A msgpackPrinter writes msgpack. The decoder reads codes, lengths and numbers. Texts and bytes
// are taken from the payload itself: the decoder would allocate the length that they claim to have,
// up to 4 GiB for a payload of five bytes, and recurse without a bound to skip a value.
type msgpackPrinter struct {
	printer
	all []byte
	r   *bytes.Reader // of all; d reads from it, byte by byte
	d   *msgpack.Decoder
}

// take returns the next n bytes.
func (p *msgpackPrinter) take(n int) ([]byte, error) {
	if n = max(n, 0); n > p.r.Len() {
		return nil, io.ErrUnexpectedEOF
	}
	from := len(p.all) - p.r.Len()
	_, err := p.r.Seek(int64(n), io.SeekCurrent)
	return p.all[from : from+n], err
}

// content returns the next text or bytes.
func (p *msgpackPrinter) content() ([]byte, error) {
	n, err := p.d.DecodeBytesLen()
	if err != nil {
		return nil, err
	}
	return p.take(n)
}

func isArray(code byte) bool {
	return msgpcode.IsFixedArray(code) || code == msgpcode.Array16 || code == msgpcode.Array32
}

func isMap(code byte) bool {
	return msgpcode.IsFixedMap(code) || code == msgpcode.Map16 || code == msgpcode.Map32
}

func (p *msgpackPrinter) value() error {
	code, err := p.d.PeekCode()
	if err != nil {
		return err
	}
	counted := func(n int) func(int) bool { return func(i int) bool { return i < n } }
	switch {
	case isArray(code):
		n, err := p.d.DecodeArrayLen()
		if err != nil {
			return err
		}
		return p.elements('[', ']', counted(n), p.value)
	case isMap(code):
		n, err := p.d.DecodeMapLen()
		if err != nil {
			return err
		}
		return p.elements('{', '}', counted(n), p.field)
	case msgpcode.IsExt(code):
		return p.extension()
	case msgpcode.IsBin(code):
		b, err := p.content()
		if err != nil {
			return err
		}
		p.bytes("", b, "")
		return nil
	case msgpcode.IsString(code):
		b, err := p.content()
		if err != nil {
			return err
		}
		text := string(b)
		p.scalar(func() { p.text(text) }, text)
		return nil
	}
	v, err := p.d.DecodeInterface() // a number, bool or nil
	if err != nil {
		return err
	}
	p.scalar(func() {
		if v == nil {
			p.out.WriteString("null")
			return
		}
		fmt.Fprint(&p.out, v) // NaN and infinity are not JSON, but people can read them
	}, "")
	return nil
}

// field writes a key and its value.
func (p *msgpackPrinter) field() error {
	from := p.out.Len()
	code, err := p.d.PeekCode()
	if err != nil {
		return err
	}
	name, odd := "", false
	switch {
	case msgpcode.IsString(code), msgpcode.IsBin(code): // some decoders take bytes for a name
		var b []byte
		if b, err = p.content(); err == nil {
			if name = string(b); msgpcode.IsString(code) {
				p.text(name)
			} else {
				p.text("0x" + hex.EncodeToString(b[:min(len(b), shownBytes)]))
			}
		}
	default: // a key of another type has no name, but one can be within it
		odd = isArray(code) || isMap(code) || msgpcode.IsExt(code)
		err = p.value()
	}
	if err != nil {
		return err
	}
	if p.out.Len() == from {
		p.text("")
	}
	p.out.WriteString(": ")
	if p.hides(name) || odd && p.hide != nil {
		p.out.WriteString(redactedText)
		return p.skip()
	}
	return p.value()
}

// skip skips a value, however deep it is.
func (p *msgpackPrinter) skip() error {
	for left := 1; left > 0; left-- {
		code, err := p.d.PeekCode()
		if err != nil {
			return err
		}
		n := 0
		switch {
		case isArray(code):
			n, err = p.d.DecodeArrayLen()
			left += n
		case isMap(code):
			n, err = p.d.DecodeMapLen()
			left += 2 * n
		case msgpcode.IsExt(code):
			if _, n, err = p.d.DecodeExtHeader(); err == nil {
				_, err = p.take(n)
			}
		case msgpcode.IsBin(code), msgpcode.IsString(code):
			_, err = p.content()
		default:
			_, err = p.d.DecodeInterface()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// extension writes a time, or the type and the bytes of another extension.
func (p *msgpackPrinter) extension() error {
	from := len(p.all) - p.r.Len()
	_, n, err := p.d.DecodeExtHeader()
	if err != nil {
		return err
	}
	if _, err := p.take(n); err != nil {
		return err
	}
	raw := p.all[from : len(p.all)-p.r.Len()]
	var at time.Time
	if len(raw) < 20 && msgpack.Unmarshal(raw, &at) == nil {
		p.scalar(func() { p.text(at.UTC().Format(time.RFC3339Nano)) }, "")
		return nil
	}
	p.bytes("<extension ", raw, ">")
	return nil
}
