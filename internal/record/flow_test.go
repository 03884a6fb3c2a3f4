package record

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

func flowOf(step int) *Flow {
	return &Flow{Topic: "album:done", ID: "album-7", Name: "\x00\xffname\x0a1", Step: step}
}

func TestFlowRoundTrip(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]*Flow{
		"last":    flowOf(LastStep),
		"first":   flowOf(0),
		"large":   flowOf(maxStep),
		"longest": {Topic: strings.Repeat("t", MaxName), ID: strings.Repeat("\xff", MaxID), Name: "12345678", Step: 99_999},
	} {
		for _, key := range []string{"", "k"} {
			o := Options{Retry: NotSet, DueIn: 5, Flow: f, Key: key, Headers: map[string]string{"a": "b"}}
			raw := encoded(t, o, []byte("payload"))
			require.Equal(t, key != "", HasKey(raw), name)
			require.EqualValues(t, map[string]byte{"": 5, "k": 6}[key], raw[NonceLen], name)
			require.Equal(t, f.Step == LastStep, raw[NonceLen+1]&flagLast != 0, name)
			j, err := Decode(raw)
			require.NoError(t, err, name)
			require.Equal(t, o, j.Options, name)
			require.Equal(t, "payload", string(j.Payload))
			require.Equal(t, o.Due(enqueuedAt), DueOf(raw[:min(len(raw), DueHead)]), name)
			for n := range len(raw) - len("payload") - 2 {
				_, err := DecodeMeta(raw[:n])
				require.Error(t, err, "%s: cut to %d bytes", name, n)
			}
			filled := o
			filled.Fill(&Options{Retry: 1, Timeout: 2})
			require.Equal(t, o, filled.Given(), "a job that runs again stays in its flow")
		}
	}
}

// The bytes that are in Redis. Whoever changes them makes a new format version.
func TestFlowLayout(t *testing.T) {
	t.Parallel()
	o := Options{Retry: NotSet, Flow: flowOf(3), Key: "k", Headers: map[string]string{"a": "b"}}
	require.Equal(t, strings.ReplaceAll(
		"0102030405060708 06 00 9f ad31373030303030303030303031 c4016b d200000000"+ // key and head start
			"00 00 fe 00 00 00 00 00 00"+
			"92 81a161a162 94 aa616c62756d3a646f6e65 c407616c62756d2d37 c40800ff6e616d650a31 d200000003"+
			"01 c40170", " ", ""), hex.EncodeToString([]byte(encoded(t, o, []byte("p")))))
	o = Options{Retry: -1, Flow: flowOf(LastStep)}
	raw := encoded(t, o, nil)
	require.Equal(t, strings.ReplaceAll(
		"0102030405060708 05 08 9d ad31373030303030303030303031 00 00 ff 00 00 00 00 00 00"+
			"92 c0 94 aa616c62756d3a646f6e65 c407616c62756d2d37 c40800ff6e616d650a31 d2ffffffff"+
			"00 c400", " ", ""), hex.EncodeToString([]byte(raw)))
	var fields []any
	require.NoError(t, msgpack.Unmarshal([]byte(raw[HeadLen-1:]), &fields), "an ordinary msgpack array")
	require.Len(t, fields, jobFields)
}

func TestLink(t *testing.T) {
	t.Parallel()
	require.Equal(t, "\x00\xffname\x0a10000001f10:album:donealbum-7", flowOf(31).Link())
	require.Equal(t, "\x00\xffname\x0a1ffffffff10:album:donealbum-7", flowOf(LastStep).Link())
	for _, step := range []int{LastStep, 0, maxStep} {
		f, err := DecodeLink(flowOf(step).Link())
		require.NoError(t, err)
		require.Equal(t, flowOf(step), f)
	}
	link := flowOf(31).Link()
	for _, damaged := range []string{"", link[:10], link[:15], link[:16], link[:20], link[:8] + "0000zz1f" + link[16:], link[:len(link)-7]} {
		_, err := DecodeLink(damaged)
		require.Error(t, err, "%q", damaged)
	}
	require.True(t, flowOf(LastStep).Last())
	require.False(t, flowOf(0).Last())
}

func TestFlowsThatCannotBe(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]Flow{
		"topic of 0 bytes":         {ID: "i", Name: "12345678"},
		"topic of 256 bytes":       {Topic: strings.Repeat("t", 256), ID: "i", Name: "12345678"},
		"ID of 0 bytes":            {Topic: "t", Name: "12345678"},
		"ID of 1025 bytes":         {Topic: "t", ID: strings.Repeat("i", 1025), Name: "12345678"},
		"name of 7 bytes":          {Topic: "t", ID: "i", Name: "1234567"},
		"number of the step is -2": {Topic: "t", ID: "i", Name: "12345678", Step: -2},
	} {
		require.ErrorContains(t, f.Check(), want)
		_, err := Decode(encoded(t, Options{Retry: NotSet, Flow: &f}, nil))
		require.ErrorContains(t, err, "decode record: flow: "+want)
	}
	_, _, err := Encode(NewNonce(), &Options{Flow: flowOf(1), Plan: &Plan{Times: []int64{1}}}, nil)
	require.ErrorContains(t, err, "cannot have a plan")
}

// Whoever cannot read the flow knows what all versions have.
func TestDamagedFlow(t *testing.T) {
	t.Parallel()
	raw := []byte(encoded(t, Options{Retry: NotSet, Flow: flowOf(1), Key: "tenant", HeadStart: 7}, nil))
	at := strings.Index(string(raw), "\x94")
	raw[at] = 0x93
	j, err := Decode(string(raw))
	require.ErrorContains(t, err, "flow: 3 values, must be 4")
	require.Equal(t, "tenant", j.Options.Key)
	require.EqualValues(t, 7, j.Options.HeadStart)
	require.EqualValues(t, enqueuedAt, j.EnqueuedAt)
	require.Nil(t, j.Options.Flow)
	raw[at-2] = 0x91
	_, err = Decode(string(raw))
	require.Error(t, err)
}
