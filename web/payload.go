package web

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
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

// Redact hides the values of fields with these names, at any depth, in payloads that are JSON or
// msgpack. Case and blanks around a name do not matter. Hidden too are a payload that is a single
// value, texts that begin as JSON does, because they can have fields of their own, and the bytes
// and extensions of msgpack. Payloads of the same topics that are neither JSON nor msgpack are
// hidden as a whole. With it, the page shows only that view of these payloads: no raw one, no
// download, and no search in them.
//
// It goes by names. It does not find a value in an array, as in ["card", "4111"], in another field,
// or in an error, an ID or a key of a job.
func Redact(fields ...string) PayloadOption { return redaction(fields) }

type redaction []string

func (names redaction) applyPayload(r *payloadRule) {
	r.redacted = true
	if r.hide == nil {
		r.hide = make(map[string]bool)
	}
	for _, name := range names {
		r.hide[folded(name)] = true
	}
}

// folded returns a name of a field without blanks around it, and the same for all of its cases, as
// decoders see them: s, S and ſ are one letter.
func folded(name string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for one := unicode.SimpleFold(r); one != r; one = unicode.SimpleFold(one) {
			least = min(least, one)
		}
		return least
	}, strings.TrimSpace(name))
}

type payloadRule struct {
	pattern  string
	decoders []Decoder
	redacted bool
	hide     map[string]bool // by folded names; not nil if redacted
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
	Cut      bool   `json:"cut,omitempty"` // only the first 64 KiB are shown
	Hidden   bool   `json:"hidden,omitempty"`
	Redacted bool   `json:"redacted,omitempty"`
}

// show decodes a payload. What it returns does not refer to the payload, which can be large.
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
		p.Raw = bytes.Clone(payload[:min(len(payload), shownBytes)])
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
			text, p.Cut = strings.Clone(text[:cut]), true
		}
		p.Text = text
		return p
	}
	p.Hidden = rule.redacted
	return p
}

// body reads the payload of a form in one of its formats.
func (v *view) body() ([]byte, error) {
	// Browsers send line ends as CR LF, whatever was typed.
	text := strings.ReplaceAll(v.form("payload"), "\r\n", "\n")
	refuse := func(err error) error { return mistake("payload", "%s", v.T("error.payload", v.form("format"), err)) }
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
	if !json.Valid([]byte(text)) { // a decoder stops behind the first value
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
