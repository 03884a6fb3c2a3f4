package record

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// FailureKeyLen is the length of the key of a group of errors.
const FailureKeyLen = 12

// FailureKey returns the key of the group of an error of a job.
func FailureKey(kind, typ, message, id string) string {
	sum := sha256.Sum256([]byte(kind + "\n" + typ + "\n" + fold(message, id)))
	return hex.EncodeToString(sum[:])[:FailureKeyLen]
}

var failureKeys = regexp.MustCompile(fmt.Sprintf(`^[0-9a-f]{%d}$`, FailureKeyLen))

// IsFailureKey reports whether a text is the key of a group of errors.
func IsFailureKey(key string) bool { return failureKeys.MatchString(key) }

// What changes from one error to the next, in the order in which it is replaced.
var folded = []struct {
	text  *regexp.Regexp
	digit bool // only if there is a digit in it
}{
	{text: regexp.MustCompile(`"(?:[^"\\]|\\.)*"|` + "`[^`]*`" + `|“[^”]*”|«[^»]*»`)},
	{text: regexp.MustCompile(`(?i)\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)},                   // UUIDs
	{text: regexp.MustCompile(`(?i)\[[0-9a-f.]*:[0-9a-f:.]*(?:%\w+)?\](?::\d+)?`)},                      // [::1]:80
	{text: regexp.MustCompile(`(?i)(?:\b[0-9a-f]{1,4}|:)(?::[0-9a-f]{0,4}){2,7}\b|::1\b`), digit: true}, // IPv6
	{text: regexp.MustCompile(`\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b`)},                                  // IPv4, with a port
	{text: regexp.MustCompile(`\b(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+\b`)},                           // durations
	{text: regexp.MustCompile(`\b(?:0[xX][0-9a-fA-F]+|[0-9a-fA-F]{4,})\b`), digit: true},
	{text: regexp.MustCompile(`\d+(?:[.,:]\d+)*`)},
}

// single matches a text in single quotation marks. An apostrophe within a word is none.
var single = regexp.MustCompile(`(^|[^\pL\pN_])'[^']*'`)

// foldedID is the least length of an ID that is looked for in a message. A shorter one is too often
// a word of its own.
const foldedID = 3

// fold returns a message with # in place of what changes from job to job.
func fold(text, id string) string {
	if len(id) >= foldedID {
		text = foldWord(text, id)
	}
	text = single.ReplaceAllString(text, "$1#")
	for _, one := range folded {
		text = one.text.ReplaceAllStringFunc(text, func(match string) string {
			if one.digit && !strings.ContainsAny(match, "0123456789") {
				return match
			}
			return "#"
		})
	}
	return text
}

// foldWord replaces a word where it is not part of a longer one.
func foldWord(text, word string) string {
	var out strings.Builder
	before := utf8.RuneError // the character in front of text
	for {
		at := strings.Index(text, word)
		if at < 0 {
			break
		}
		if at > 0 {
			before, _ = utf8.DecodeLastRuneInString(text[:at])
		}
		after, _ := utf8.DecodeRuneInString(text[at+len(word):])
		out.WriteString(text[:at])
		if inWord(before) || inWord(after) {
			out.WriteString(word)
		} else {
			out.WriteByte('#')
		}
		before, _ = utf8.DecodeLastRuneInString(word)
		text = text[at+len(word):]
	}
	out.WriteString(text)
	return out.String()
}

func inWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' }
