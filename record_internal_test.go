package delayq

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/delayq/delayq/internal/embedded"
)

// whole puts the time of enqueueing between head and tail, as enqueue.lua does.
func whole(head, tail string, enqueuedAt int64) string {
	return fmt.Sprintf("%s\xad%013d%s", head, enqueuedAt, tail)
}

func encoded(t testing.TB, o *jobOptions, payload []byte) string {
	t.Helper()
	head, tail, err := encodeRecord([nonceLen]byte{1, 2, 3, 4, 5, 6, 7, 8}, o, payload)
	require.NoError(t, err)
	return whole(head, tail, 1_700_000_000_001)
}

func TestRecordRoundTrip(t *testing.T) {
	t.Parallel()
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	at := time.UnixMilli(maxDueMS)
	for name, c := range map[string]struct {
		opts    []JobOption
		payload []byte
	}{
		"nothing":       {nil, nil},
		"empty payload": {nil, []byte{}},
		"every byte":    {[]JobOption{Header(string(all), string(all))}, all},
		"due in":        {[]JobOption{ProcessIn(hundredYears)}, nil}, "due at": {[]JobOption{ProcessAt(at)}, nil}, "due long ago": {[]JobOption{ProcessAt(time.Unix(1, 0))}, nil},
		"retry 0":        {[]JobOption{Retry(0)}, []byte("p")},
		"unlimited":      {[]JobOption{Retry(Unlimited)}, []byte("p")},
		"largest retry":  {[]JobOption{Retry(math.MaxInt32)}, []byte("p")},
		"backoff":        {[]JobOption{Backoff(time.Millisecond, hundredYears)}, []byte("p")},
		"timeout":        {[]JobOption{Timeout(hundredYears)}, []byte("p")},
		"expire at":      {[]JobOption{ExpireAt(at)}, []byte("p")},
		"expire in":      {[]JobOption{ExpireIn(hundredYears)}, []byte("p")},
		"retention":      {[]JobOption{Retention(time.Millisecond)}, []byte("p")},
		"empty header":   {[]JobOption{Header("", "")}, []byte("p")},
		"many headers":   {manyHeaders(1000), []byte("p")},
		"31 byte header": {[]JobOption{Header(strings.Repeat("k", 31), strings.Repeat("v", 32))}, []byte("p")},
		"long header":    {[]JobOption{Header(strings.Repeat("k", 300), strings.Repeat("v", 9000))}, []byte("p")},
		"payload 255":    {nil, bytes.Repeat([]byte{0xff}, 255)},
		"payload 256":    {nil, bytes.Repeat([]byte{0xff}, 256)},
		"payload 65535":  {nil, bytes.Repeat([]byte{0xff}, 65535)},
		"payload 65536":  {nil, bytes.Repeat([]byte{0xff}, 65536)},
		"all together": {[]JobOption{
			Retry(3), Backoff(time.Second, time.Minute), Timeout(time.Hour), ExpireIn(time.Hour), Retention(time.Hour), Header("a", "b"),
		}, bytes.Repeat([]byte("x"), 1<<20)},
	} {
		o, err := newJobOptions(c.opts)
		require.NoError(t, err, name)
		rec, err := decodeRecord(encoded(t, &o, c.payload))
		require.NoError(t, err, name)
		require.Equal(t, o, rec.opts, name)
		require.Equal(t, string(c.payload), string(rec.payload), name)
		require.Equal(t, len(c.payload), rec.size, name)
		require.Equal(t, "\x01\x02\x03\x04\x05\x06\x07\x08", rec.nonce)
		require.EqualValues(t, 1_700_000_000_001, rec.enqueuedAt)
		require.Equal(t, o.due(1_700_000_000_001), rec.due)
	}
}

func manyHeaders(n int) (opts []JobOption) {
	for i := range n {
		opts = append(opts, Header(fmt.Sprint(i), fmt.Sprint(-i)))
	}
	return opts
}

// The layout that docs/protocol.md promises to other languages.
func TestRecordLayout(t *testing.T) {
	t.Parallel()
	o := defaultJob
	raw := encoded(t, &o, []byte("payload"))
	require.Equal(t, "\x01\x02\x03\x04\x05\x06\x07\x08\x01\x00\x9d", raw[:headLen], "nonce, version, flags, an array of 13")
	var fields []any
	require.NoError(t, msgpack.Unmarshal([]byte(raw[headLen-1:]), &fields), "an ordinary msgpack array")
	require.Len(t, fields, recordFields)
	require.Equal(t, "1700000000001", fields[0])
	require.EqualValues(t, -2, fields[3], "not given")
	require.EqualValues(t, 0, fields[4], "not given")
	require.Equal(t, []byte("payload"), fields[12])
	require.True(t, strings.HasSuffix(raw, "payload"), "last, with nothing behind it")
}

// (I2)
func TestRecordThatCannotBeRead(t *testing.T) {
	t.Parallel()
	o := defaultJob
	good := encoded(t, &o, []byte("payload"))
	with := func(at int, b byte) string { return good[:at] + string([]byte{b}) + good[at+1:] }
	for name, c := range map[string]struct{ raw, want string }{
		"empty":             {"", "too short"},
		"a few bytes":       {"abc", "too short"},
		"head only":         {good[:headLen], "too short"},
		"version 0":         {with(nonceLen, 0), "format version 0"},
		"no array":          {with(headLen-1, 0xc0), "0xc0"},
		"another array":     {with(headLen-1, 0x9c), "0x9c"},
		"no stamp":          {with(headLen, 0xac), "enqueue time"},
		"letters in stamp":  {with(headLen+3, 'x'), "enqueue time"},
		"cut":               {good[:len(good)-1], "payload"},
		"too long":          {good + "x", "payload"},
		"without a tail":    {good[:headLen+stampLen], "decode record"},
		"garbage for tail":  {good[:headLen+stampLen] + "\xc1\xc1", "decode record"},
		"backoff from 0":    {tailOf(t, good, -1, 0, 1000), "backoff"},
		"backoff backwards": {tailOf(t, good, -1, 5000, 1000), "backoff"},
		"endless backoff":   {tailOf(t, good, -1, 1, math.MaxInt64), "backoff"},
	} {
		_, err := decodeRecord(c.raw)
		require.ErrorContains(t, err, c.want, name)
		require.NotErrorIs(t, err, errNewerRecord)
	}
}

// tailOf makes a record with other retry and backoff.
func tailOf(t *testing.T, good string, retry, low, high int64) string {
	t.Helper()
	o := defaultJob
	o.retry, o.backoffMin, o.backoffMax = int(retry), low, high
	_, tail, err := encodeRecord([nonceLen]byte{}, &o, nil)
	require.NoError(t, err)
	return good[:headLen+stampLen] + tail
}

// A record of a later release is told apart from one that is broken: it is left for who can read
// it. (O2)
func TestRecordOfALaterRelease(t *testing.T) {
	t.Parallel()
	o := defaultJob
	raw := []byte(encoded(t, &o, nil))
	raw[nonceLen] = recordVersion + 1
	_, err := decodeRecord(string(raw))
	require.ErrorIs(t, err, errNewerRecord)
	require.ErrorContains(t, err, "2, this release reads up to 1")
	raw[nonceLen+1] = 0xff // whatever it means by its flags and fields
	_, err = decodeRecord(string(raw[:headLen]) + strings.Repeat("?", 40))
	require.ErrorIs(t, err, errNewerRecord)
}

// The flags are for later: a record that has some is read all the same.
func TestRecordWithFlags(t *testing.T) {
	t.Parallel()
	o := defaultJob
	raw := []byte(encoded(t, &o, []byte("p")))
	raw[nonceLen+1] = 0xff
	rec, err := decodeRecord(string(raw))
	require.NoError(t, err)
	require.Equal(t, "p", string(rec.payload))
}

// (I2)
func TestGarbageIsNoRecord(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	o, err := newJobOptions(manyHeaders(3))
	require.NoError(t, err)
	good := encoded(t, &o, []byte("some payload"))
	for range 20_000 {
		raw := []byte(good)
		for range 1 + random.IntN(4) { // a few bytes are wrong, after a good beginning
			raw[nonceLen+random.IntN(len(raw)-nonceLen)] = byte(random.Uint32())
		}
		readRecord(t, string(raw[:random.IntN(len(raw)+1)]))
	}
}

// readRecord reads a record: it may fail, and what it gives must be of use to a server.
func readRecord(t testing.TB, raw string) {
	t.Helper()
	rec, err := decodeRecord(raw)
	if err != nil {
		return
	}
	require.Equal(t, raw[:nonceLen], rec.nonce)
	require.Equal(t, len(rec.payload), rec.size)
	rec.opts.fill(&defaultRun)
	for _, attempt := range []int{1, 2, 70, math.MaxInt} {
		require.Positive(t, backoff(attempt, rec.opts.backoffMin, rec.opts.backoffMax))
	}
	rec.expires()
}

func FuzzRecord(f *testing.F) {
	o := defaultJob
	good := encoded(f, &o, []byte("payload"))
	for _, seed := range []string{
		"", good, good[:20], good + "x", good[:headLen+stampLen] + "\xdf\xff\xff\xff\xff", // a map of 2^32 headers
		good[:headLen+stampLen] + strings.Repeat("\x01", 7) + "\x81\xdb\xff\xff\xff\xff", // a string of 2^32 bytes
		netstring(byHand) + netstring("{"), "99999999999999999999:x", "-1:", "3:{}", ":", "+2:{}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		readRecord(t, raw)
		for _, e := range decodeErrors(raw) {
			_ = e.encode()
		}
		parseMoved(raw)
		if first, rest, ok := cutNetstring(raw); ok {
			require.LessOrEqual(t, len(first)+len(rest), len(raw))
		}
		for _, cut := range []int{-1, 0, len(raw), recordHead} {
			readJobInfo("topic", "id", cut, func(int) string { return raw })
		}
	})
}

func TestErrorsRoundTrip(t *testing.T) {
	t.Parallel()
	want := []AttemptError{
		{
			Attempt: 1, At: msTime(1_700_000_000_000), Duration: 1500 * time.Millisecond, Server: "s", Kind: KindPanic, Type: "*errors.errorString",
			Message: "mess\"age\n🐢", Stack: "goroutine 1", NextDue: msTime(1_700_000_002_000), TraceParent: "00-1-2-3",
		},
		{Attempt: 2, At: msTime(1_700_000_002_000), Kind: KindTimeout},
	}
	require.Equal(t, want, decodeErrors(netstring(want[0].encode())+netstring(want[1].encode())))
}

// (I11)
func TestErrorsAreClipped(t *testing.T) {
	t.Parallel()
	long := AttemptError{Message: strings.Repeat("🐢", 10_000), Stack: strings.Repeat("s", 100_000), TraceParent: strings.Repeat("t", 100_000)}
	got := decodeErrors(netstring(long.encode()))[0]
	require.LessOrEqual(t, len(got.Message), 1<<10)
	require.LessOrEqual(t, len(got.Stack), 4<<10)
	require.LessOrEqual(t, len(got.TraceParent), 255)
	require.True(t, strings.HasSuffix(got.Message, "🐢…"), "cut between characters: %q", got.Message[len(got.Message)-8:])
	exact := strings.Repeat("x", 1<<10)
	require.Equal(t, exact, decodeErrors(netstring((&AttemptError{Message: exact}).encode()))[0].Message)
}

func TestErrorsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	good := (&AttemptError{Attempt: 7}).encode()
	for log, want := range map[string]int{
		"": 0, "x": 0, ":": 0, "5:x": 0, "-1:x": 0, "99999999999999999999:x": 0,
		netstring(good) + "garbage":                      1,
		netstring("no JSON") + netstring(good):           1,
		netstring("") + netstring(good):                  1,
		netstring(`{"attempt":"x"}`) + netstring(good):   1,
		netstring(good) + netstring(good) + "1000:short": 2,
	} {
		require.Len(t, decodeErrors(log), want, log)
	}
}

func TestMovedThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, past := range []tally{{}, {spent: 3, snoozes: 4}, {spent: 5, revived: true}} {
		m, ok := parseMoved("1700000000000 retry " + past.encode())
		require.True(t, ok)
		require.Equal(t, moved{1_700_000_000_000, "retry", past}, m)
	}
	for _, s := range []string{
		"", "1", "1 retry", "1 retry 3", "1 retry 3 4", "x retry 3 4 0", "1 retry x 4 0", "1 retry 3 x 0", "1 retry 3 4 2", "1 retry 3 4 x",
		"1 retry 3 4 0 0", "99999999999999999999 retry 3 4 0", "-1 retry 3 4 0", "1 retry -1 4 0", "1 retry 3 -1 0",
	} {
		_, ok := parseMoved(s)
		require.False(t, ok, s)
	}
}

// Any bytes are an ID and a payload. (B16, I8)
func FuzzID(f *testing.F) {
	r := embedded.New()
	f.Cleanup(r.Close)
	rdb := r.Client()
	f.Cleanup(func() { _ = rdb.Close() })
	client := NewClient(rdb)
	every := make([]byte, 256)
	binary.BigEndian.PutUint64(every[8:], math.MaxUint64)
	for i := range every {
		every[i] = byte(i)
	}
	for _, seed := range []string{
		"", "x", ":", "{}", "a{b}c", "a\nb", "\x00", "\xff\xfe", "🐢", string(every), strings.Repeat("-", 1024), strings.Repeat("i", 1025), "none", " 1 ",
	} {
		f.Add(seed, []byte(seed))
		f.Add(seed, []byte(nil))
	}
	f.Fuzz(func(t *testing.T, id string, payload []byte) {
		ctx := context.Background()
		const topic = "fuzz"
		job, err := client.Enqueue(ctx, topic, id, payload, ProcessIn(time.Hour), Header(id, string(payload[:min(len(payload), 1000)])))
		if len(id) > maxIDLen {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		require.NoError(t, err)
		if id != "" {
			require.Equal(t, id, job.ID)
		}
		id = job.ID
		_, err = client.Enqueue(ctx, topic, id, nil)
		require.ErrorIs(t, err, ErrDuplicate)
		info, err := client.Get(ctx, topic, id)
		require.NoError(t, err)
		require.NoError(t, info.Undecodable)
		require.Equal(t, id, info.ID)
		require.True(t, bytes.Equal(payload, info.Payload))
		require.Equal(t, job.Due, info.Due)
		require.NoError(t, client.Reschedule(ctx, topic, id, ProcessIn(0)))
		h := NewHand(t, rdb, defaultPrefix, topic)
		held := h.TakeOne(id)
		require.Equal(t, "o", h.Return(held))
		state, err := client.Dequeue(ctx, topic, id)
		require.NoError(t, err)
		require.Equal(t, StateReady, state)
		require.Empty(t, h.Take(1, time.Minute), "it is cancelled")
		_, err = client.Dequeue(ctx, topic, id)
		require.True(t, errors.Is(err, ErrNotFound), err)
		for _, key := range []string{"pool", "bucket", "ready", "leases", "moved", "attempts"} {
			require.False(t, r.Exists(h.Key(key)), key)
		}
	})
}
