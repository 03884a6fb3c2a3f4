package mail

import (
	"strings"
	"testing"
	"unicode"
)

// A payload of anybody is read, or is an error. Its addresses are single words for SMTP.
func FuzzPayload(f *testing.F) {
	for _, text := range []string{
		``, `{"template": "w", "to": ["a@b.example"]}`, `{"template": "w", "to": ["Änn <a@b.example>", "\"a b\"@c.example"], "data": {"n": 1e400, "m": [{}]}}`,
		`{"to": ["a@b.example>\r\nRCPT TO:<x@y.example"]}`, `{"to": ["(((((((((a)@b)))"]}`, `{"to": ["a@[1.2.3.4]"], "reply_to": "=?utf-8?q?=0d=0a?= <a@b.example>"}`,
		`{"to": ["a@b.example"], "data": {"x": ` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := read([]byte(text))
		if err != nil {
			return
		}
		all := append(append(append(r.to, r.cc...), r.bcc...), r.replyTo)
		for _, a := range all {
			if a == nil {
				continue
			}
			if strings.ContainsAny(a.Address, " <>\"\r\n,;") || strings.Count(a.Address, "@") != 1 || strings.ContainsFunc(a.Name, unicode.IsControl) {
				t.Fatalf("%q: %q", text, a)
			}
		}
	})
}
