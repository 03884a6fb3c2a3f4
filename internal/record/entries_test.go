package record

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestErrorsRoundTrip(t *testing.T) {
	t.Parallel()
	want := []Failure{
		{
			Attempt: 1, At: 1_700_000_000_000, Ran: 1500, Server: "s", Kind: "panic", Type: "*errors.errorString",
			Message: "mess\"age\n🐢", Stack: "goroutine 1", NextDue: 1_700_000_002_000, Trace: "00-1-2-3",
		},
		{Attempt: 2, At: 1_700_000_002_000, Kind: "timeout"},
	}
	require.Equal(t, want, DecodeFailures(Netstring(want[0].Encode())+Netstring(want[1].Encode())))
	require.Equal(t, `{"attempt":2,"at":1700000002000,"kind":"timeout"}`, want[1].Encode(), "what is unknown is absent")
}

// (I11)
func TestErrorsAreClipped(t *testing.T) {
	t.Parallel()
	long := Failure{Message: strings.Repeat("🐢", 10_000), Stack: strings.Repeat("s", 100_000), Trace: strings.Repeat("t", 100_000)}
	got := DecodeFailures(Netstring(long.Encode()))[0]
	require.LessOrEqual(t, len(got.Message), 1<<10)
	require.LessOrEqual(t, len(got.Stack), 4<<10)
	require.LessOrEqual(t, len(got.Trace), 255)
	require.True(t, strings.HasSuffix(got.Message, "🐢…"), "cut between characters: %q", got.Message[len(got.Message)-8:])
	exact := strings.Repeat("x", 1<<10)
	require.Equal(t, exact, DecodeFailures(Netstring(Failure{Message: exact}.Encode()))[0].Message)
}

func TestErrorsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	good := Failure{Attempt: 7}.Encode()
	for log, want := range map[string]int{
		"": 0, "x": 0, ":": 0, "5:x": 0, "-1:x": 0, "99999999999999999999:x": 0,
		Netstring(good) + "garbage":                      1,
		Netstring("no JSON") + Netstring(good):           1,
		Netstring("") + Netstring(good):                  1,
		Netstring(`{"attempt":"x"}`) + Netstring(good):   1,
		Netstring(good) + Netstring(good) + "1000:short": 2,
	} {
		require.Len(t, DecodeFailures(log), want, log)
	}
}

func TestMovedThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, past := range []Tally{{}, {Spent: 3, Snoozes: 4}, {Spent: 5, Revived: true}} {
		m, ok := DecodeMoved("1700000000000 retry " + past.Encode())
		require.True(t, ok)
		require.Equal(t, Moved{Due: 1_700_000_000_000, Why: "retry", Tally: past}, m)
	}
	for text, want := range map[string][2]int64{
		"debounce": {0, 0}, "debounce:5-7": {5, 7}, "debounce:5": {5, 0}, "debounce:5-7.000012": {5, 7}, "debounce:x-y": {0, 0}, "debounce:99999999999999-7": {0, 7},
	} {
		m, ok := DecodeMoved("6 " + text + " 1 2 0")
		require.True(t, ok, text)
		require.Equal(t, Moved{Due: 6, Why: "debounce", First: want[0], Last: want[1], Tally: Tally{Spent: 1, Snoozes: 2}}, m, text)
	}
	require.Equal(t, Tally{Spent: 6, Snoozes: 5, Revived: true}, Tally{Spent: 3, Snoozes: 4, Revived: true}.Snoozed(6))
	for _, s := range []string{
		"", "1", "1 retry", "1 retry 3", "1 retry 3 4", "x retry 3 4 0", "1 retry x 4 0", "1 retry 3 x 0", "1 retry 3 4 2", "1 retry 3 4 x",
		"1 retry 3 4 0 0", "99999999999999999999 retry 3 4 0", "-1 retry 3 4 0", "1 retry -1 4 0", "1 retry 3 -1 0",
	} {
		_, ok := DecodeMoved(s)
		require.False(t, ok, s)
	}
}

func TestDoneRoundTrip(t *testing.T) {
	t.Parallel()
	d := Done{Attempt: 2, Start: 5, End: 9, Server: "s", Snoozes: 1}
	require.Equal(t, Netstring(`{"attempt":2,"start":5,"end":9,"server":"s","snoozes":1}`), d.Encode(nil))
	got, raw, ok := DecodeDone(d.Encode(nil) + "record")
	require.True(t, ok)
	require.Equal(t, d, got)
	require.Equal(t, "record", raw)
	about := Netstring(`{"output":3,"attempt":2,"start":5,"end":9,"server":"s","snoozes":1}`)
	require.Equal(t, about+"out", d.Encode([]byte("out")))
	got, raw, ok = DecodeDone(about + "recordout")
	require.True(t, ok)
	raw, output := got.Split(raw)
	require.Equal(t, []string{"record", "out"}, []string{raw, output})
	for _, size := range []int{-1, 7} {
		raw, output = Done{Output: size}.Split("record")
		require.Equal(t, []string{"record", ""}, []string{raw, output})
	}
	_, raw, ok = DecodeDone("no netstring")
	require.False(t, ok)
	require.Equal(t, "no netstring", raw)
	_, raw, ok = DecodeDone(Netstring("no JSON") + "record")
	require.False(t, ok)
	require.Equal(t, "record", raw)
}

func TestPauses(t *testing.T) {
	t.Parallel()
	text := "20 0 3 7 annbecause" + "10 50 0 0 " + "10 40 1 2 ano" + "5 30 1 0 b"
	require.Equal(t, []Pause{
		{Since: 5, Until: 30, By: "b"}, {Since: 10, Until: 50}, {Since: 10, Until: 40, By: "a", Reason: "no"},
		{Since: 20, By: "ann", Reason: "because"},
	}, DecodePauses(text, 29))
	require.Len(t, DecodePauses(text, 30), 3, "one is over")
	require.Len(t, DecodePauses(text, 50), 1)
	for _, text := range []string{"", "x", "1 2 3", "1 0 5 5 short", "1 0 -1 0 x", "1 0 0 -1 x", "1 0 9223372036854775807 1 x"} {
		require.Empty(t, DecodePauses(text, 0), text)
	}
}

func TestMessages(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Message{
		"wake 0 4 mail":              {"wake", "0", "mail", ""},
		"cancel 17.25 4 mailjob one": {"cancel", "17.25", "mail", "job one"},
		"later 0 0 ":                 {"later", "0", "", ""},
	} {
		m, ok := DecodeMessage(text)
		require.True(t, ok, text)
		require.Equal(t, want, m)
	}
	for _, text := range []string{"", "wake", "wake 0 4", "wake 0 5 mail", "wake 0 -1 mail", "wake 0 x mail"} {
		_, ok := DecodeMessage(text)
		require.False(t, ok, text)
	}
}

func TestHeartbeatRoundTrip(t *testing.T) {
	t.Parallel()
	want := Heartbeat{
		Host: "h", PID: 7, Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Version: "v1", State: "running",
		Topics: map[string]HeartbeatTopic{"mail": {
			Workers: 3, Batch: 5, Running: 1, Longest: []HeartbeatJob{{"x", time.Second}}, Loops: map[string]time.Duration{"take": time.Millisecond},
			Taken: 5, Within: time.Minute, Defaults: NewHeartbeatDefaults(&Options{Retry: 3, BackoffMin: 1, BackoffMax: 2, Timeout: 4}),
		}},
	}
	text, err := want.Encode()
	require.NoError(t, err)
	require.JSONEq(t, `{"host":"h","pid":7,"started":"2026-01-02T03:04:05Z","version":"v1","state":"running","topics":{"mail":{
		"slots":3,"batch":5,"running":1,"longest":[{"id":"x","for":1000000000}],"defaults":{"retry":3,"min":1000000,"max":2000000,"timeout":4000000},
		"taken":5,"within":60000000000,"loops":{"take":1000000}}}}`, string(text), "as docs/protocol.md says")
	got, at := DecodeHeartbeat("17 " + string(text))
	require.EqualValues(t, 17, at)
	require.Equal(t, want, got)

	got, at = DecodeHeartbeat(`99999999999999999999 {"host":5,"pid":7}`)
	require.Zero(t, at)
	require.Equal(t, Heartbeat{PID: 7}, got, "what can be read")
}
