package commit

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
)

// The parcels that scripts and other releases read and write.
func TestParcels(t *testing.T) {
	t.Parallel()
	row := Row{Kind: RowEnqueue, ID: "id\x00", Replace: "d", DueAt: 1_700_000_000_000, DueIn: 7, Record: "record 1:"}
	name := "\x00\xff:34567"
	for want, p := range map[string]Parcel{
		"14:from3:id\x001:d1700000000000 7 record 1:":        {Format: FormatJob, From: "from", Row: row},
		"24:last3:id\x001:d5:link:1700000000000 7 record 1:": {Format: FormatStep, From: "last", Row: row, Link: "link:"},
		"32:f7\x00\xff:345670000000ao2:{}output":             {Format: FormatArrival, End: End{"f7", name, 10, 'o', "2:{}output"}},
		"32:f7\x00\xff:345670000000ax":                       {Format: FormatArrival, End: End{"f7", name, 10, 'x', ""}},
		"43:a/1\x00\xff:34567000186a0":                       {Format: FormatCancel, End: End{"a/1", name, 100_000, 0, ""}},
		"52:f7\x00\xff:34567e":                               {Format: FormatSweep, End: End{"f7", name, record.LastStep, SweepAll, ""}},
	} {
		p.Row.Kind = RowEnqueue
		require.Equal(t, want, p.Encode())
		if p.Format == FormatArrival {
			require.Equal(t, want[1:], p.End.Body())
		}
		p.At = 1_700_000_000_123
		got, err := DecodeParcel("1700000000123" + want)
		require.NoError(t, err, want)
		require.Equal(t, p, got)
	}
}

// A bundle is several parcels with one time. What is damaged in it counts as one of them.
func TestBundlesOfParcels(t *testing.T) {
	t.Parallel()
	const at = "1700000000123"
	for text, want := range map[string][]string{
		"":                   {""},
		at:                   {at},
		at + "3rest":         {at + "3rest"},
		at + "60022:3a3:4bc": {at + "3a", at + "4bc"},
		at + "60013:6xx":     {at + "6xx"},
		at + "6001":          nil,
		at + "6":             nil,
		at + "60032:3a9:4bc": {at + "3a", at},
		at + "60032:3a2:4bc": {at + "3a", at + "4b", at},
	} {
		require.Equal(t, want, SplitParcel(text), "%q", text)
	}
	_, err := DecodeParcel(at)
	require.ErrorIs(t, err, errParcel)
}

func TestParcelsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	const at = "1700000000123"
	for _, text := range []string{
		"", at, "170000000012x1", at + "1", at + "19:", at + "11:a1:b1:c", at + "11:a1:b1:c1 x r", at + "21:a1:b1:c1 2 r",
		at + "3", at + "31:a1234567", at + "31:a123456780000000", at + "31:a12345678000000zzo", at + "31:a1234567800000001",
		at + "41:a123456780000000", at + "41:a1234567800000001x", at + "51:a12345678", at + "51:a12345678ee",
	} {
		_, err := DecodeParcel(text)
		require.ErrorIs(t, err, errParcel, "%q", text)
	}
	for _, format := range []string{"0", "6", "a"} {
		_, err := DecodeParcel(at + format + strings.Repeat("x", 20))
		require.ErrorIs(t, err, ErrLaterParcel)
		require.ErrorContains(t, err, format)
	}
}
