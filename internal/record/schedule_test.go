package record

import (
	"testing"

	"github.com/stretchr/testify/require"
)

var everyMonday = Definition{
	Spec: Spec{Kind: Cron, Text: "0 9 * * 1", Zone: "Europe/Berlin"}, First: 1, Last: MaxTime, Most: 5, Jitter: 7,
	Overlap: OverlapQueueOne, Missed: MissedCatchUp(3), Edit: Edit{At: 9, By: "ann", Parts: "Jitter Spec"},
	Job:     Options{Retry: 3, Headers: map[string]string{"a": "1", "b": "2"}},
	Payload: []byte("payload"), Size: 7,
}

func TestDefinitionRoundTrip(t *testing.T) {
	t.Parallel()
	for _, want := range []Definition{everyMonday, {Spec: Spec{Kind: Interval, Every: 10_000}, Payload: []byte{}}, {Spec: Spec{Kind: Calendar, Text: "days"}, Payload: []byte{}}} {
		raw, err := want.Encode()
		require.NoError(t, err)
		got, err := DecodeDefinition(raw)
		require.NoError(t, err)
		require.Equal(t, HexNonceOf(raw), got.Nonce)
		want.Nonce = got.Nonce
		require.Equal(t, want, *got)

		meta, err := DecodeDefinitionMeta(raw[:len(raw)-len(want.Payload)])
		require.NoError(t, err)
		got.Payload = nil
		require.Equal(t, got, meta)

		again, err := want.Encode()
		require.NoError(t, err)
		require.NotEqual(t, raw, again, "a new nonce")
		require.True(t, SameDefinition(raw, again))
		require.False(t, SameDefinition(raw, again+"x"))
		require.False(t, SameDefinition("", raw))
	}
	require.Equal(t, []string{"Jitter", "Spec"}, everyMonday.Edit.Names())
}

func TestDefinitionThatCannotBeRead(t *testing.T) {
	t.Parallel()
	encode := func(change func(d *Definition)) string {
		d := everyMonday
		change(&d)
		raw, err := d.Encode()
		require.NoError(t, err)
		return raw
	}
	good := encode(func(*Definition) {})
	for raw, want := range map[string]string{
		"":                           "definition of 0 bytes is too short",
		good[:NonceLen+1]:            "too short",
		good[:NonceLen] + "\x03\x90": "format version 3, this release reads 1 to 2",
		good[:NonceLen] + "\x02\x90": "0 fields instead of 27",
		good[:NonceLen] + "\x01\x93": "3 fields instead of 25",
		good[:NonceLen] + "\x01\xc1": "decode definition",
		good[:40]:                    "decode definition",
		good[:len(good)-1]:           "payload of 6 bytes, 7 announced",
		encode(func(d *Definition) { d.Spec = Spec{Kind: Interval} }):     `spec "every 0s"`,
		encode(func(d *Definition) { d.Overlap = 4 }):                     "overlap OverlapPolicy(4)",
		encode(func(d *Definition) { d.Missed = MissedCatchUp(1001) }):    "missed MissedCatchUp(1001)",
		encode(func(d *Definition) { d.Overlap, d.Missed = -1, 1<<40|1 }): "invalid values",
	} {
		_, err := DecodeDefinition(raw)
		require.ErrorContains(t, err, want, "%q", raw)
	}
}

// A definition is read as it was written; whatever the bytes are, reading it is an error and no
// panic.
func FuzzDefinition(f *testing.F) {
	raw, err := everyMonday.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add(raw[:len(raw)-3])
	f.Fuzz(func(t *testing.T, raw string) {
		_, _ = DecodeDefinitionMeta(raw)
		d, err := DecodeDefinition(raw)
		if err != nil {
			return
		}
		_ = d.Spec.String() + d.Missed.String() + d.Overlap.String()
		require.Len(t, d.Payload, d.Size)
		_, err = d.Encode()
		require.NoError(t, err)
	})
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	for p, want := range map[Missed]string{
		MissedRunOnce: "MissedRunOnce", MissedSkip: "MissedSkip", MissedCatchUp(1): "MissedCatchUp(1)", MissedCatchUp(MaxCatchUp): "MissedCatchUp(1000)",
	} {
		require.True(t, p.Known(), p)
		require.Equal(t, want, p.String())
	}
	for p, want := range map[Missed]string{
		3: "MissedPolicy(3)", 4: "MissedPolicy(4)", -1: "MissedPolicy(-1)", MissedCatchUp(0): "MissedCatchUp(0)", MissedCatchUp(-1): "MissedCatchUp(-1)",
		MissedCatchUp(MaxCatchUp + 1): "MissedCatchUp(1001)",
	} {
		require.False(t, p.Known(), p)
		require.Equal(t, want, p.String())
	}
	most, ok := MissedCatchUp(3).CatchUp()
	require.True(t, ok)
	require.Equal(t, 3, most)
	for _, p := range []Missed{MissedRunOnce, MissedSkip, 3} {
		_, ok = p.CatchUp()
		require.False(t, ok)
	}
	require.Equal(t, "OverlapCancelPrevious", OverlapCancelPrevious.String())
	require.Equal(t, "OverlapPolicy(-1)", Overlap(-1).String())
}

func TestSlotIDs(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]SlotID{
		"s@17": {"s", 17, false}, "s@t@17": {"s@t", 17, false}, "s!17": {"s", 17, true}, "s!17.3": {"s", 17, true}, "s!x@-5": {"s!x", -5, false},
	} {
		got, ok := DecodeSlotID(id)
		require.True(t, ok, id)
		require.Equal(t, want, got, id)
	}
	for _, id := range []string{"", "s", "@17", "!17", "s@", "s@x", "s@17.3", "s!17.", "s!17.x", "s!17.-1", "s@17 "} {
		_, ok := DecodeSlotID(id)
		require.False(t, ok, id)
	}
}

func TestRunRoundTrip(t *testing.T) {
	t.Parallel()
	want := Run{Job: "s@1", Attempt: 2, Start: 5, End: 9, Server: "x", Outcome: "retried", Error: "e"}
	got, ok := DecodeRun("11 " + want.Encode())
	require.True(t, ok)
	require.Equal(t, want, got)
	got, ok = DecodeRun(`11 {"job":"s@1","attempt":1,"outcome":"lease_lost"}`)
	require.True(t, ok)
	require.Equal(t, Run{Job: "s@1", Attempt: 1, End: 11, Outcome: "lease_lost"}, got, "the time when it was written")
	for _, entry := range []string{"", "11", "11 {", "11 []", "{}"} {
		_, ok = DecodeRun(entry)
		require.False(t, ok, entry)
	}
	long := Run{Error: string(make([]byte, 1000))}
	got, _ = DecodeRun("1 " + long.Encode())
	require.LessOrEqual(t, len(got.Error), MaxRunError)

	ended, failed, rest := CutRunCounts("12 3 11 {}")
	require.Equal(t, []any{int64(12), int64(3), "11 {}"}, []any{ended, failed, rest})
	ended, failed, rest = CutRunCounts("12 3")
	require.Equal(t, []any{int64(12), int64(3), ""}, []any{ended, failed, rest})
}

func TestScheduleState(t *testing.T) {
	t.Parallel()
	s, err := DecodeScheduleState(`{"nonce":"0102","fired":3,"slot":5,"job":"s@5","ended":true,"later":{}}`)
	require.NoError(t, err)
	require.Equal(t, ScheduleState{Nonce: "0102", Fired: 3, Slot: 5, Job: "s@5", Ended: true}, s)
	s, err = DecodeScheduleState(`{"fired":3,"slot":"x"}`)
	require.ErrorContains(t, err, "state: ")
	require.EqualValues(t, 3, s.Fired, "what can be read")
}
