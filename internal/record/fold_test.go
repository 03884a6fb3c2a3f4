package record

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// Messages of one kind of failure, with what differs from job to job, and their common form.
var foldings = []struct{ id, message, folded string }{
	{"", "", ""},
	{"x", "dial tcp: refused", "dial tcp: refused"},
	// numbers, times and durations
	{"x", "status 503 after 3 tries", "status # after # tries"},
	{"x", "shard7 of -12 at 1.5e3", "shard# of -# at #e#"},
	{"x", "took 1.52s, more than 1s", "took #, more than #"},
	{"x", "took 1m30s, more than 500ms or 20µs", "took #, more than # or #"},
	{"x", "at 2026-01-02T15:04:05.999Z and 15:04", "at #-#-#T#Z and #"},
	{"x", "1,234,567 rows", "# rows"},
	// hexadecimal numbers
	{"x", "object 0xc000123abc at 0XFF", "object # at #"},
	{"x", "commit 9f86d081884c7d65 of deadbeef1", "commit # of #"},
	{"x", "a faded facade", "a faded facade"}, // words of these letters are no numbers
	// UUIDs
	{"x", "user 123e4567-e89b-12d3-a456-426614174000 is gone", "user # is gone"},
	{"x", "user 123E4567-E89B-12D3-A456-426614174000 is gone", "user # is gone"},
	// addresses
	{"x", "dial tcp 10.0.0.1:6379: connect", "dial tcp #: connect"},
	{"x", "dial tcp 10.0.0.1: connect", "dial tcp #: connect"},
	{"x", "dial tcp [::1]:6379: connect", "dial tcp #: connect"},
	{"x", "dial tcp [fe80::1%eth0]:80: connect", "dial tcp #: connect"},
	{"x", "from 2001:db8::ff00:42:8329 to ::1", "from # to #"},
	// quotations
	{"x", `no topic "mail" and no "a\"b"`, "no topic # and no #"},
	{"x", "no topic `mail` or «mail» or “mail”", "no topic # or # or #"},
	{"x", "no topic 'mail', it can't be", "no topic #, it can't be"},
	{"x", "can't and won't", "can't and won't"},
	{"x", `an "open quotation`, `an "open quotation`},
	// the job's own ID
	{"order-abc", "no row of order-abc", "no row of #"},
	{"order-abc", "order-abc/order-abc: (order-abc)", "#/#: (#)"},
	{"abc", "abcd, xabc, abc_d and abc", "abcd, xabc, abc_d and #"},
	{"a", "a job", "a job"}, // such a short one is a word
	{"żółć", "zażółć żółć", "zażółć #"},
	{"a(b", "not a(b but a.b", "not # but a.b"},
}

func TestFoldOfMessages(t *testing.T) {
	for _, c := range foldings {
		require.Equal(t, c.folded, fold(c.message, c.id), "%q of %q", c.message, c.id)
	}
}

// Errors of one key have the same kind, type and folded message.
func TestFailureKeys(t *testing.T) {
	one := FailureKey("error", "*net.OpError", "order-1: refused after 3s", "order-1")
	require.Regexp(t, `^[0-9a-f]{12}$`, one)
	require.True(t, IsFailureKey(one))
	require.Equal(t, "ba2c9553a4fd", one, "the key is the same in every release, because people keep it")
	require.Equal(t, one, FailureKey("error", "*net.OpError", "order-22: refused after 1m3s", "order-22"))
	for _, other := range []string{
		FailureKey("panic", "*net.OpError", "order-1: refused after 3s", "order-1"),
		FailureKey("error", "*url.Error", "order-1: refused after 3s", "order-1"),
		FailureKey("error", "*net.OpError", "order-1: reset after 3s", "order-1"),
	} {
		require.NotEqual(t, one, other)
	}
	for _, no := range []string{"", "f0af4f6ca33", "f0af4f6ca33aa", "F0AF4F6CA33A", "f0af4f6ca33g"} {
		require.False(t, IsFailureKey(no), no)
	}
}

// No number is left, the text stays UTF-8, and two jobs with the same message about themselves have
// the same folded one.
func FuzzFold(f *testing.F) {
	for _, c := range foldings {
		f.Add(c.message, c.id)
	}
	f.Fuzz(func(t *testing.T, message, id string) {
		folded := fold(message, id)
		require.False(t, strings.ContainsAny(folded, "0123456789"), "%q", folded)
		if utf8.ValidString(message) && utf8.ValidString(id) {
			require.True(t, utf8.ValidString(folded), "%q", folded)
		}
		require.LessOrEqual(t, len(folded), len(message))
		one, two := fold("of job-abc: "+message, "job-abc"), fold("of job-xyz: "+message, "job-xyz")
		if !strings.Contains(message, "job-abc") && !strings.Contains(message, "job-xyz") {
			require.Equal(t, one, two)
		}
	})
}
