package record

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

const enqueuedAt = 1_700_000_000_001

func encoded(t testing.TB, o Options, payload []byte) string {
	t.Helper()
	head, tail, err := Encode(Nonce{1, 2, 3, 4, 5, 6, 7, 8}, &o, payload)
	require.NoError(t, err)
	return Join(head, enqueuedAt, tail)
}

// unset holds the options of a job that sets none.
var unset = Options{Retry: NotSet}

func TestRecordRoundTrip(t *testing.T) {
	t.Parallel()
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	with := func(set func(o *Options)) Options {
		o := unset
		set(&o)
		return o
	}
	header := func(k, v string) Options {
		return with(func(o *Options) { o.Headers = map[string]string{k: v} })
	}
	for name, c := range map[string]struct {
		o       Options
		payload []byte
	}{
		"nothing":        {unset, nil},
		"empty payload":  {unset, []byte{}},
		"every byte":     {header(string(all), string(all)), all},
		"due in":         {with(func(o *Options) { o.DueIn = MaxDelay }), nil},
		"due at":         {with(func(o *Options) { o.DueAt = MaxTime }), nil},
		"due long ago":   {with(func(o *Options) { o.DueAt = 1000 }), nil},
		"retry 0":        {with(func(o *Options) { o.Retry = 0 }), []byte("p")},
		"unlimited":      {with(func(o *Options) { o.Retry = -1 }), []byte("p")},
		"largest retry":  {with(func(o *Options) { o.Retry = math.MaxInt32 }), []byte("p")},
		"backoff":        {with(func(o *Options) { o.BackoffMin, o.BackoffMax = 1, MaxDelay }), []byte("p")},
		"timeout":        {with(func(o *Options) { o.Timeout = MaxDelay }), []byte("p")},
		"expire at":      {with(func(o *Options) { o.ExpireAt = MaxTime }), []byte("p")},
		"expire in":      {with(func(o *Options) { o.ExpireIn = MaxDelay }), []byte("p")},
		"retention":      {with(func(o *Options) { o.Retention = 1 }), []byte("p")},
		"of a schedule":  {with(func(o *Options) { o.Scheduled = true }), []byte("p")},
		"empty header":   {header("", ""), []byte("p")},
		"key":            {with(func(o *Options) { o.Key = "k" }), []byte("p")},
		"longest key":    {with(func(o *Options) { o.Key, o.HeadStart = strings.Repeat("k", MaxName), MaxHeadStart }), nil},
		"behind":         {with(func(o *Options) { o.Key, o.HeadStart, o.DueIn = string(all[:MaxName]), -MaxHeadStart, 5 }), nil},
		"many headers":   {with(func(o *Options) { o.Headers = manyHeaders(1000) }), []byte("p")},
		"31 byte header": {header(strings.Repeat("k", 31), strings.Repeat("v", 32)), []byte("p")},
		"long header":    {header(strings.Repeat("k", 300), strings.Repeat("v", 9000)), []byte("p")},
		"payload 255":    {unset, bytes.Repeat([]byte{0xff}, 255)},
		"payload 256":    {unset, bytes.Repeat([]byte{0xff}, 256)},
		"payload 65535":  {unset, bytes.Repeat([]byte{0xff}, 65535)},
		"payload 65536":  {unset, bytes.Repeat([]byte{0xff}, 65536)},
		"all together": {Options{
			Retry: 3, BackoffMin: 1000, BackoffMax: 60_000, Timeout: 3_600_000, ExpireIn: 3_600_000, Retention: 3_600_000,
			Headers: map[string]string{"a": "b"}, Scheduled: true,
		}, bytes.Repeat([]byte("x"), 1<<20)},
	} {
		raw := encoded(t, c.o, c.payload)
		j, err := Decode(raw)
		require.NoError(t, err, name)
		require.Equal(t, c.o, j.Options, name)
		require.Equal(t, string(c.payload), string(j.Payload), name)
		require.Equal(t, len(c.payload), j.Size, name)
		require.Equal(t, "\x01\x02\x03\x04\x05\x06\x07\x08", j.Nonce)
		require.Equal(t, "0102030405060708", HexNonceOf(raw))
		require.EqualValues(t, enqueuedAt, j.EnqueuedAt)
		require.Equal(t, c.o.Due(enqueuedAt), j.Due())
		require.Equal(t, c.o.Expires(enqueuedAt), j.Expires())

		meta, err := DecodeMeta(raw[:len(raw)-len(c.payload)])
		require.NoError(t, err, name)
		j.Payload = nil
		require.Equal(t, j, meta, name)
	}
}

func manyHeaders(n int) map[string]string {
	headers := make(map[string]string)
	for i := range n {
		headers[fmt.Sprint(i)] = fmt.Sprint(-i)
	}
	return headers
}

func TestDueAndExpires(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		o            Options
		due, expires int64
	}{
		{Options{}, 100, 0},
		{Options{DueIn: 5}, 105, 0},
		{Options{DueAt: 103}, 103, 0},
		{Options{DueAt: 99}, 100, 0}, // in the past
		{Options{DueIn: 5, ExpireIn: 7}, 105, 107},
		{Options{ExpireAt: 106}, 100, 106},
		{Options{ExpireAt: 106, ExpireIn: 7}, 100, 107},
	} {
		require.Equal(t, c.due, c.o.Due(100), "%+v", c.o)
		require.Equal(t, c.expires, c.o.Expires(100), "%+v", c.o)
	}
}

// What a job sets is left alone; the rest comes from the defaults.
func TestFill(t *testing.T) {
	t.Parallel()
	defaults := Options{Retry: 7, BackoffMin: 1, BackoffMax: 2, Timeout: 3, Retention: 4}
	o := unset
	require.Equal(t, -1, o.Retries())
	o.Fill(&defaults)
	want := defaults
	want.filled = o.filled
	require.Equal(t, want, o)
	require.Equal(t, 7, o.Retries())
	require.Equal(t, unset, o.Given())
	set := Options{Retry: -1, BackoffMin: 11, BackoffMax: 12, Timeout: 13, Retention: 14}
	o = set
	o.Fill(&defaults)
	require.Equal(t, set, o)
	require.Equal(t, set, o.Given())
}

// Given returns every set of values as it was, also if they are those of the defaults.
func TestGiven(t *testing.T) {
	t.Parallel()
	defaults := Options{Retry: 7, BackoffMin: 1, BackoffMax: 2, Timeout: 3, Retention: 4}
	for sets := range 16 {
		job := unset
		job.DueIn, job.ExpireAt, job.Headers, job.Scheduled = 5, 6, map[string]string{"a": "1"}, true
		if sets&1 != 0 {
			job.Retry = 7
		}
		if sets&2 != 0 {
			job.BackoffMin, job.BackoffMax = 1, 2
		}
		if sets&4 != 0 {
			job.Timeout = 3
		}
		if sets&8 != 0 {
			job.Retention = 4
		}
		o := job
		o.Fill(&defaults)
		o.Fill(&defaults)
		require.Equal(t, job, o.Given())
		require.Equal(t, defaults.Retry, o.Retry)
		require.Equal(t, defaults.Retention, o.Retention)
	}
}

// The layout that docs/protocol.md promises to other languages.
func TestRecordLayout(t *testing.T) {
	t.Parallel()
	raw := encoded(t, unset, []byte("payload"))
	require.Equal(t, "\x01\x02\x03\x04\x05\x06\x07\x08\x01\x00\x9d", raw[:HeadLen], "nonce, version, flags, an array of 13")
	var fields []any
	require.NoError(t, msgpack.Unmarshal([]byte(raw[HeadLen-1:]), &fields), "an ordinary msgpack array")
	require.Len(t, fields, jobFields)
	require.Equal(t, "1700000000001", fields[0])
	require.EqualValues(t, -2, fields[3], "not given")
	require.EqualValues(t, 0, fields[4], "not given")
	require.Equal(t, []byte("payload"), fields[12])
	require.True(t, strings.HasSuffix(raw, "payload"), "last, with nothing behind it")
	for flags, o := range map[byte]Options{
		1: {Retry: 0}, 2: {Retry: -1, Scheduled: true}, 4: {Retry: NotSet, ExpireAt: 1}, 7: {Retry: 1, Scheduled: true, ExpireIn: 1},
	} {
		require.Equal(t, flags, encoded(t, o, nil)[NonceLen+1])
	}
}

// (I2)
func TestRecordThatCannotBeRead(t *testing.T) {
	t.Parallel()
	good := encoded(t, unset, []byte("payload"))
	with := func(at int, b byte) string { return good[:at] + string([]byte{b}) + good[at+1:] }
	for name, c := range map[string]struct{ raw, want string }{
		"empty":             {"", "too short"},
		"a few bytes":       {"abc", "too short"},
		"head only":         {good[:HeadLen], "too short"},
		"version 0":         {with(NonceLen, 0), "format version 0"},
		"no array":          {with(HeadLen-1, 0xc0), "0xc0"},
		"another array":     {with(HeadLen-1, 0x9c), "0x9c"},
		"no stamp":          {with(HeadLen, 0xac), "enqueue time"},
		"letters in stamp":  {with(HeadLen+3, 'x'), "enqueue time"},
		"cut":               {good[:len(good)-1], "payload"},
		"too long":          {good + "x", "payload"},
		"without a tail":    {good[:HeadLen+StampLen], "decode record"},
		"garbage for tail":  {good[:HeadLen+StampLen] + "\xc1\xc1", "decode record"},
		"backoff from 0":    {encoded(t, Options{Retry: -1, BackoffMax: 1000}, nil), "backoff"},
		"backoff backwards": {encoded(t, Options{Retry: -1, BackoffMin: 5000, BackoffMax: 1000}, nil), "backoff"},
		"endless backoff":   {encoded(t, Options{Retry: -1, BackoffMin: 1, BackoffMax: math.MaxInt64}, nil), "backoff"},
	} {
		j, err := Decode(c.raw)
		require.ErrorContains(t, err, c.want, name)
		require.NotErrorIs(t, err, ErrNewer)
		if strings.Contains(c.want, "payload") || strings.Contains(c.want, "backoff") || c.want == "decode record" {
			require.Equal(t, Job{Nonce: good[:NonceLen], EnqueuedAt: j.EnqueuedAt}, j, "what all versions have")
			require.NotZero(t, j.EnqueuedAt)
		} else {
			require.Zero(t, j)
		}
	}
	o := unset
	o.Key = "k"
	keyed := encoded(t, o, nil)
	damaged, err := Decode(keyed[:len(keyed)-1])
	require.Error(t, err)
	require.Equal(t, "k", damaged.Options.Key, "what waits for its key has to know")
	require.Empty(t, NonceOf("short"))
}

// A record of a later release is told apart from one that is broken: it is left for a server that
// can read it. (O2)
func TestRecordOfALaterRelease(t *testing.T) {
	t.Parallel()
	raw := []byte(encoded(t, unset, nil))
	raw[NonceLen] = MaxVersion + 1
	j, err := Decode(string(raw))
	require.ErrorIs(t, err, ErrNewer)
	require.ErrorContains(t, err, "format version 7, this one reads up to 6")
	require.Equal(t, Job{Nonce: string(raw[:NonceLen]), EnqueuedAt: j.EnqueuedAt}, j, "what all versions have")
	require.NotZero(t, j.EnqueuedAt)
	raw[NonceLen+1] = 0xff // whatever it means by its flags and fields
	j, err = Decode(string(raw[:HeadLen]) + strings.Repeat("?", 40))
	require.ErrorIs(t, err, ErrNewer)
	require.Equal(t, Job{Nonce: string(raw[:NonceLen]), Options: Options{Scheduled: true}}, j)
}

// The key and the head start are where they were, in records of every even version, and only there.
func TestKeyOfALaterRelease(t *testing.T) {
	t.Parallel()
	o := unset
	o.Key, o.HeadStart = "tenant", -5
	raw := []byte(encoded(t, o, []byte("p")))
	for _, version := range []byte{8, 10, 254} {
		raw[NonceLen] = version
		for _, record := range []string{string(raw), string(raw[:HeadLen-1]) + "?" + string(raw[HeadLen:])} {
			j, err := DecodeMeta(record)
			require.ErrorIs(t, err, ErrNewer)
			require.Equal(t, "tenant", j.Options.Key)
			require.EqualValues(t, -5, j.Options.HeadStart)
		}
		j, err := Decode(string(raw[:HeadLen+StampLen+2]))
		require.ErrorIs(t, err, ErrNewer)
		require.Empty(t, j.Options.Key, "cut")
	}
	for _, version := range []byte{7, 9, 255} {
		raw[NonceLen] = version
		j, err := Decode(string(raw))
		require.ErrorIs(t, err, ErrNewer)
		require.Empty(t, j.Options.Key)
	}
}

// A later release may set other flags: a record that has some is read all the same.
func TestRecordWithFlags(t *testing.T) {
	t.Parallel()
	raw := []byte(encoded(t, unset, []byte("p")))
	raw[NonceLen+1] = 0xff
	j, err := Decode(string(raw))
	require.NoError(t, err)
	require.Equal(t, "p", string(j.Payload))
}

// (I2)
func TestGarbageIsNoRecord(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	good := encoded(t, Options{Headers: manyHeaders(3)}, []byte("some payload"))
	for range 20_000 {
		raw := []byte(good)
		for range 1 + random.IntN(4) { // a few bytes are wrong, after a good beginning
			raw[NonceLen+random.IntN(len(raw)-NonceLen)] = byte(random.Uint32())
		}
		readRecord(t, string(raw[:random.IntN(len(raw)+1)]))
	}
}

// readRecord reads a record: it may fail, and what it gives must be of use to a server.
func readRecord(t testing.TB, raw string) {
	t.Helper()
	_, _ = DecodeMeta(raw)
	j, err := Decode(raw)
	if err != nil {
		return
	}
	require.Equal(t, raw[:NonceLen], j.Nonce)
	require.Equal(t, len(j.Payload), j.Size)
	o := j.Options
	o.Fill(&Options{Retry: -1, BackoffMin: 2000, BackoffMax: 4_096_000})
	require.Positive(t, o.BackoffMin)
	require.LessOrEqual(t, o.BackoffMin, o.BackoffMax)
	require.LessOrEqual(t, o.BackoffMax, int64(MaxDelay))
	j.Expires()
}

func FuzzRecord(f *testing.F) {
	good := encoded(f, unset, []byte("payload"))
	failure := Failure{Attempt: 1, At: enqueuedAt, Kind: "error", Message: "m"}.Encode()
	for _, seed := range []string{
		"", good, good[:20], good + "x", good[:HeadLen+StampLen] + "\xdf\xff\xff\xff\xff", // a map of 2^32 headers
		good[:HeadLen+StampLen] + strings.Repeat("\x01", 7) + "\x81\xdb\xff\xff\xff\xff", // a string of 2^32 bytes
		Netstring(failure) + Netstring("{"), "99999999999999999999:x", "-1:", "3:{}", ":", "+2:{}",
		Done{Attempt: 1}.Encode(nil) + good, Netstring(`{"output":3}`) + good + "out", "1 0 1 1 br", "1 2 9223372036854775807 9223372036854775807 br", "wake 0 1 t", "name!1.2",
		"5 " + Run{Job: "s@1"}.Encode(), `17 {"host":"h","topics":{"t":{"slots":1}}}`, `{"nonce":"x"}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		readRecord(t, raw)
		for _, e := range DecodeFailures(raw) {
			require.Len(t, DecodeFailures(Netstring(e.Encode())), 1)
		}
		if m, ok := DecodeMoved(raw); ok {
			again, ok := DecodeMoved(fmt.Sprintf("%d %s %s", m.Due, m.Why, m.Encode()))
			require.True(t, ok)
			require.Equal(t, m, again)
		}
		if first, rest, ok := CutNetstring(raw); ok {
			require.LessOrEqual(t, len(first)+len(rest), len(raw))
		}
		if d, rest, ok := DecodeDone(raw); ok {
			record, output := d.Split(rest)
			d.Output = len(output)
			about := strings.TrimSuffix(d.Encode([]byte(output)), output)
			again, rest, ok := DecodeDone(about + record + output)
			require.True(t, ok)
			require.Equal(t, d, again)
			kept, left := again.Split(rest)
			require.Equal(t, []string{record, output}, []string{kept, left})
		}
		for _, p := range DecodePauses(raw, 0) {
			require.LessOrEqual(t, len(p.By)+len(p.Reason), len(raw))
		}
		if m, ok := DecodeMessage(raw); ok {
			require.True(t, strings.HasSuffix(raw, m.Topic+m.Job))
		}
		if s, ok := DecodeSlotID(raw); ok {
			require.True(t, strings.HasPrefix(raw, s.Schedule))
		}
		DecodeRun(raw)
		CutRunCounts(raw)
		DecodeHeartbeat(raw)
		_, _ = DecodeScheduleState(raw)
	})
}

func BenchmarkRecord(b *testing.B) {
	payload := make([]byte, 120)
	for name, o := range map[string]Options{
		"plain": unset,
		"full": {
			Retry: 6, DueIn: 1_000_000, Timeout: 10_000,
			Headers: map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a": "b"},
		},
	} {
		raw := encoded(b, o, payload)
		b.Run("Encode/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := Encode(Nonce{1}, &o, payload); err != nil {
					b.Fatal(err)
				}
			}
		})
		for call, decode := range map[string]func(string) (Job, error){"Decode": Decode, "DecodeMeta": DecodeMeta} {
			b.Run(call+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := decode(raw); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
