package delayq

import (
	"unicode/utf8"

	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/explain"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// The steps of a history are read from whatever a field holds.
func FuzzDecodeSums(f *testing.F) {
	for _, seed := range []string{"", "12", "12 acked 1", "12 acked 1 late0 2", "12 acked x", "12  3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, field string) {
		record.DecodeSums(field, 12, func(_ string, n int64) { require.GreaterOrEqual(t, n, int64(0)) })
		var step HistoryStep
		step.read(field, 12, time.Minute, record.LatenessBounds, record.RunTimeBounds)
		_ = step.Lateness.Quantile(0.99)
	})
}

// A reason keeps all that an explanation says of it.
func TestReasonsAreWhole(t *testing.T) {
	t.Parallel()
	for _, code := range []ReasonCode{ReasonTopicRate, ReasonKeyRate} {
		var r explain.Reason
		of := reflect.ValueOf(&r).Elem()
		for i := range of.NumField() {
			switch field := of.Field(i); field.Interface().(type) {
			case time.Time:
				field.Set(reflect.ValueOf(time.Unix(1, 0)))
			case string, explain.Code:
				field.SetString("x")
			case int, int64, time.Duration:
				field.SetInt(1)
			case float64:
				field.SetFloat(1)
			case bool:
				field.SetBool(true)
			case *explain.Failure:
				field.Set(reflect.ValueOf(&explain.Failure{}))
			default:
				t.Fatal(field.Type())
			}
		}
		r.Code = explain.Code(code)
		c := &circumstances{info: &JobInfo{Errors: []AttemptError{{Attempt: 1}, {Attempt: 2}}}, rate: Per(1, time.Second), keyRate: Per(2, time.Second)}
		got := c.reason(&r)
		for i := range reflect.TypeFor[Reason]().NumField() {
			require.False(t, reflect.ValueOf(got).Field(i).IsZero(), reflect.TypeFor[Reason]().Field(i).Name)
		}
		require.Same(t, &c.info.Errors[1], got.Error)
		require.Equal(t, reflect.TypeFor[explain.Reason]().NumField(), reflect.TypeFor[Reason]().NumField())
	}
}

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
	key := func(kind ErrorKind, typ, message, id string) string {
		return failureKey(&AttemptError{Kind: kind, Type: typ, Message: message, Attempt: len(message)}, id)
	}
	one := key(KindError, "*net.OpError", "order-1: refused after 3s", "order-1")
	require.Regexp(t, `^[0-9a-f]{12}$`, one)
	require.True(t, isFailureKey(one))
	require.Equal(t, "ba2c9553a4fd", one, "the key is the same in every release, because people keep it")
	require.Equal(t, one, key(KindError, "*net.OpError", "order-22: refused after 1m3s", "order-22"))
	for _, other := range []string{
		key(KindPanic, "*net.OpError", "order-1: refused after 3s", "order-1"),
		key(KindError, "*url.Error", "order-1: refused after 3s", "order-1"),
		key(KindError, "*net.OpError", "order-1: reset after 3s", "order-1"),
	} {
		require.NotEqual(t, one, other)
	}
	for _, no := range []string{"", "f0af4f6ca33", "f0af4f6ca33aa", "F0AF4F6CA33A", "f0af4f6ca33g"} {
		require.False(t, isFailureKey(no), no)
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

// What selects jobs is in the audit of an Apply and in the cursors of a query, whichever field of
// Query it is. A new field is added here, and so to both.
func TestEveryFieldOfAQueryCounts(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1_700_000_000_000)
	base := Query{Topic: "topic", State: StateReady}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Query]()) {
		q, audited, identified := base, true, true
		switch field.Name {
		case "Topic": // an entry of the audit has a field for it
			q.Topic, audited = "other", false
		case "State":
			q.State = StateDead
		case "From":
			q.From = at
		case "To":
			q.To = at
		case "Latest":
			q.Latest = true
		case "Key":
			q.Key = "tenant-7"
		case "IDPrefix":
			q.IDPrefix = "order-"
		case "MinAttempt":
			q.MinAttempt = 3
		case "Headers":
			q.Headers = map[string]string{"tenant": "7"}
		case "Error":
			q.Error = "timeout"
		case "Failure":
			q.Failure = "0123456789ab"
		case "Payload":
			q.Payload = []byte("7")
		case "Limit", "Budget": // how much one call looks at
			q.Limit, q.Budget, audited, identified = 7, 7, false, false
		case "Cursor":
			q.Cursor, identified = "continued", false
		default:
			t.Errorf("Query.%s is not in this test", field.Name)
			continue
		}
		texts := func(q Query) string { return (&application{query: q, action: Cancel()}).text() }
		require.Equal(t, audited, texts(base) != texts(q), "Query.%s in the audit: %q", field.Name, texts(q))
		ids := func(q Query) queryID {
			return (&walk{q: &q, keys: script.NewKeys("delayq", q.Topic), from: scoreBound(q.From, "-"), to: scoreBound(q.To, "+")}).id()
		}
		require.Equal(t, identified, ids(base) != ids(q), "Query.%s in the cursor", field.Name)
	}
}
