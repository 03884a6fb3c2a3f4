package mail

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	netmail "net/mail"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/delayq/delayq/handlers/internal/jsonerr"
)

// The bounds of a mail.
const (
	maxRecipients = 50
	maxAddress    = 320     // bytes, with the display name
	maxSubject    = 500     // characters
	maxPart       = 1 << 20 // bytes of the text and of the HTML, each
)

// form is the form of a payload, for errors.
const form = `{"template": "name", "to": ["address", …], "cc": […], "bcc": […], "reply_to": "address", "data": {…}}`

// A request is a payload that has been read.
type request struct {
	Template string         `json:"template"`
	To       []string       `json:"to"`
	CC       []string       `json:"cc"`
	BCC      []string       `json:"bcc"`
	ReplyTo  string         `json:"reply_to"`
	Data     map[string]any `json:"data"`

	to, cc, bcc []*netmail.Address
	replyTo     *netmail.Address // nil: none
}

// read reads a payload. Its errors have no values of it but the name of a template.
func read(payload []byte) (*request, error) {
	var r request
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber()
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		return nil, fmt.Errorf("%w; expected %s", jsonerr.Located(err, decoder), form)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, fmt.Errorf("byte %d: more than one value; expected %s", decoder.InputOffset()+1, form)
	}
	if n := len(r.To) + len(r.CC) + len(r.BCC); n < 1 || n > maxRecipients {
		return nil, fmt.Errorf("%d recipients in to, cc and bcc; expected 1 to %d", n, maxRecipients)
	}
	for _, list := range []struct {
		name string
		from []string
		to   *[]*netmail.Address
	}{{"to", r.To, &r.to}, {"cc", r.CC, &r.cc}, {"bcc", r.BCC, &r.bcc}} {
		for i, text := range list.from {
			a, err := address(text)
			if err != nil {
				return nil, fmt.Errorf("address %d of %s: %w", i+1, list.name, err)
			}
			*list.to = append(*list.to, a)
		}
	}
	if r.ReplyTo != "" {
		var err error
		if r.replyTo, err = address(r.ReplyTo); err != nil {
			return nil, fmt.Errorf("reply_to: %w", err)
		}
	}
	for name, value := range r.Data {
		r.Data[name] = plain(value)
	}
	return &r, nil
}

// plainAddress matches addresses that need no quotes. A quoted local part could close the angle
// brackets of a command of SMTP.
var plainAddress = regexp.MustCompile(`^[^\s"(),:;<>@\[\]\\]+@[^\s"(),:;<>@\[\]\\]+$`)

// address reads an address.
func address(text string) (*netmail.Address, error) {
	switch {
	case len(text) > maxAddress:
		return nil, fmt.Errorf("%d bytes; expected at most %d", len(text), maxAddress)
	case strings.ContainsFunc(text, unicode.IsControl) || !utf8.ValidString(text):
		return nil, errors.New("has a line break or another control character; expected none")
	}
	a, err := netmail.ParseAddress(text) // its error has the text
	if err != nil || !plainAddress.MatchString(a.Address) || strings.ContainsFunc(a.Name, unicode.IsControl) {
		return nil, errors.New("not an address; expected name@domain, or Display Name <name@domain>")
	}
	return a, nil
}

// plain returns a value of JSON with numbers that templates can print and compare.
func plain(value any) any {
	switch v := value.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
		return v.String()
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = plain(v[name])
		}
	}
	return value
}
