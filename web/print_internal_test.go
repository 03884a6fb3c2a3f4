package web

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

// rules are those under which payloads are shown.
var rules = map[string]*payloadRule{
	"open": {}, "redacted": {redacted: true, hide: map[string]bool{folded("card"): true}},
}

// shown returns what a page shows of a payload, in all views.
func (rule *payloadRule) shown(payload []byte) string {
	p := rule.show("topic", payload)
	return p.Text + p.RawText() + string(p.Raw)
}

// nested returns a value in n arrays or maps of one element.
func nested(n int, open, inner, end string) []byte {
	return []byte(strings.Repeat(open, n) + inner + strings.Repeat(end, n))
}

// A payload that is nested deeply would exhaust the stack, which no program survives. With a stack
// of 1 MiB a recursion of some thousand steps does.
func TestDeepPayloadsDoNotEndTheProcess(t *testing.T) {
	defer debug.SetMaxStack(debug.SetMaxStack(1 << 20))
	const deep = 1 << 20
	for name, payload := range map[string][]byte{
		"msgpack, hidden":        append([]byte("\x81\xa4card"), nested(deep, "\x91", "\xc0", "")...),
		"msgpack, hidden maps":   append([]byte("\x81\xa4card"), nested(deep, "\x81\x01", "\xc0", "")...),
		"msgpack, hidden by bin": append([]byte("\x81\xc4\x04card"), nested(deep, "\x91", "\xc0", "")...),
		"msgpack":                nested(deep, "\x91", "\xc0", ""),
		"msgpack keys":           nested(deep, "\x81", "\xc0", "\xc0"),
		"JSON, hidden":           []byte(`{"card":` + string(nested(deep, "[", "1", "]")) + `}`),
		"JSON, hidden, valid":    []byte(`{"card":` + string(nested(9000, "[", "1", "]")) + `}`),
		"JSON":                   nested(deep, "[", "1", "]"),
		"JSON, valid":            nested(9000, `{"a":`, "1", "}"),
	} {
		for kind, rule := range rules {
			p := rule.show("topic", payload)
			require.Equal(t, len(payload), p.Size, "%s, %s", name, kind)
			require.LessOrEqual(t, len(p.Text), shownBytes)
		}
	}
	for n, want := range map[int]string{maxDepth: JSON.Name, maxDepth + 1: Text.Name} {
		require.Equal(t, want, rules["open"].show("topic", nested(n, "[", "1", "]")).Format, n)
		require.Equal(t, n > maxDepth, rules["redacted"].show("topic", nested(n, "\x91", "\xc0", "")).Hidden, n)
	}
	hidden := append([]byte("\x82\xa4card"), nested(deep, "\x91", "\xc0", "\xa1a\x07")...)
	p := rules["redacted"].show("topic", hidden[:len(hidden)-3*(deep-1)])
	require.Equal(t, "{\n  \"card\": \"•••\",\n  \"a\": 7\n}", p.Text, "what comes after a deep value is shown")
}

// A length that a payload claims to have costs nothing.
func TestPayloadsThatLieAboutTheirLength(t *testing.T) {
	for _, payload := range []string{"\xa3ab", "\x91\xa3ab", "\xc4\x03ab", "\xc7\x04\x05ab", "\x93\x01\x02", "\x82\x01\x02\x03"} {
		require.Equal(t, Hex.Name, rules["open"].show("topic", []byte(payload)).Format, "%q", payload)
		require.True(t, rules["redacted"].show("topic", []byte(payload)).Hidden, "%q", payload)
	}
	for _, begin := range []string{"", "\x81\xa4card", "\x81\xa1a", "\x91", "\x81"} {
		for _, code := range []byte{0xc6, 0xdb, 0xc9, 0xdd, 0xdf} { // bin, str, ext, array and map of 32 bits
			payload := binary.BigEndian.AppendUint32(append([]byte(begin), code), math.MaxUint32)
			for kind, rule := range rules {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				rule.show("topic", payload)
				runtime.ReadMemStats(&after)
				require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20), "%q, %s", payload, kind)
			}
		}
	}
}

func TestRedactedNames(t *testing.T) {
	rule := &payloadRule{}
	Redact("card", "Secret key").applyPayload(rule)
	for name, payload := range map[string]string{
		"plain": `{"card":"4111"}`, "case": `{"CARD":"4111"}`, "escape": `{"c\u0061rd":"4111"}`, "depth": `{"x":[{"card":{"n":"4111"}}]}`,
		"text that is JSON": `{"body":"{\"card\":\"4111\"}"}`, "list in a text": `["  [{\"card\":\"4111\"}]"]`, "a text": `"4111"`, "a number": `4111`,
		"msgpack": "\x81\xa4card\xa44111", "bytes as a name": "\x81\xc4\x04card\xa44111", "blanks": `{" card ":"4111"}`, "not a format": "card=4111",
		"another letter": "{\"\u017fecret \u212aey\":\"4111\"}", "bytes": "\x81\xa1a\xc4\x044111", "extension": "\x81\xa1a\xd6\x054111", "a msgpack text": "\xa44111",
		"a list as a name": "\x81\x91\xa4card\xa44111", "a map as a name": "\x81\x81\xa4card\x01\xa44111", "an extension as a name": "\x81\xd4\x05a\xa44111",
	} {
		require.NotContains(t, rule.shown([]byte(payload)), "4111", name)
		require.NotContains(t, rule.shown([]byte(payload)), "34313131", name)
	}
	for _, hidden := range []string{
		"\x82\x01\x02\x03\x04", "\xde\x00\x01\x01\x02", "\x92\x01\x02", "\xdc\x00\x01\x01", "\xa2ab", "\xd9\x02ab", "\xc4\x02ab", "\xd4\x05a",
		"\xd6\xff\x00\x00\x00\x00", "\xc7\x02\x05ab", "\xcf\x00\x00\x00\x00\x00\x00\x00\x07", "\xcb\x00\x00\x00\x00\x00\x00\x00\x00", "\xc0", "\xc3", "\x07",
		"\x81\x92\x01\x02\x81\x03\xc4\x01a",
	} {
		require.Equal(t, "{\n  \"card\": \"•••\",\n  \"a\": 7\n}", rule.shown([]byte("\x82\xa4card"+hidden+"\xa1a\x07")), "%q", hidden)
	}
	require.Contains(t, rule.shown([]byte(`{"cards":"4111","a":[4111]}`)), "4111", "other fields are shown")
	require.Contains(t, rule.shown([]byte(`["card","4111"]`)), "4111", "the documents say so")
}

// What a page shows does not keep a large payload in memory.
func TestShownPayloadIsSmall(t *testing.T) {
	for _, payload := range [][]byte{
		[]byte(`{"a":"` + strings.Repeat("x", 8<<20) + `"}`), bytes.Repeat([]byte("\xff"), 8<<20), []byte(strings.Repeat("text ", 1<<20)),
		append([]byte("\xc6\x00\x80\x00\x00"), make([]byte, 8<<20)...),
	} {
		for _, rule := range rules {
			p := rule.show("topic", payload)
			require.Less(t, sizeOf(&p), 4*shownBytes)
		}
	}
}

// Whatever a payload holds, it is shown or hidden as text within bounds.
func FuzzShowPayload(f *testing.F) {
	for _, seed := range []string{
		`{"card":"4111","a":[1,2.5,null,true]}`, "\x82\xa4card\xa44111\xa1a\x93\x01\x02\x03", "\xc6\xff\xff\xff\xff", "\xd6\xff\x00\x00\x00\x00", "\xc7\x0c\xff",
		"\x81\xc4\x01a\xdf\xff\xff\xff\xff", "[[[[", "\x91\x91\x91\xc0", "text", "\xff\xfe", "\xcb\x7f\xf8\x00\x00\x00\x00\x00\x01",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		for kind, rule := range rules {
			p := rule.show("topic", payload)
			require.Equal(t, len(payload), p.Size)
			require.LessOrEqual(t, len(p.Text), shownBytes)
			if p.Format == JSON.Name && !p.Cut {
				require.True(t, json.Valid([]byte(p.Text)), kind)
			}
			if kind == "redacted" {
				require.Empty(t, p.Raw)
				require.NotEqual(t, p.Hidden, p.Format != "")
			}
		}
	})
}

// A payload that was typed is refused or taken, whatever it is.
func FuzzTypedPayload(f *testing.F) {
	for _, seed := range []string{`{"n":12345678901,"a":[1.5]}`, "[", `{"a":1}{}`, "1e999", "0]", "99999999999999999999", string(nested(10, "[", "", "]")), "aGVsbG8="} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		packed, err := packJSON(text, func(err error) error { return err })
		if err != nil {
			return
		}
		var tree any
		require.NoError(t, msgpack.Unmarshal(packed, &tree))
		require.True(t, json.Valid([]byte(text)))
		if utf8.ValidString(text) && len(packed) > 1 && packed[0] > 0x7f && packed[0] < 0xe0 {
			_, err = msgpackText(packed, nil)
			if err != nil {
				require.ErrorIs(t, err, errDeep)
			}
		}
	})
}
