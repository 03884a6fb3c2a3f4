package record

import (
	"strconv"
	"strings"
)

// History is kept for this many minutes and hours: a field of its hashes is a minute or an hour
// modulo this.
const (
	HistoryMinutes = 360
	HistoryHours   = 720
)

// EncodeSums returns the names and numbers of the series that are not zero, as they are added to
// the history of a topic. names and sums have the same length.
func EncodeSums(names []string, sums []int64) string {
	var b []byte
	for i, n := range sums {
		if n == 0 {
			continue
		}
		if len(b) > 0 {
			b = append(b, ' ')
		}
		b = append(append(b, names[i]...), ' ')
		b = strconv.AppendInt(b, n, 10)
	}
	return string(b)
}

// DecodeSums reads a field of the history of a topic. It calls add for each of its series, up to
// the first that is unreadable. If the field is not that of the minute or hour at, counted since
// 1970, it calls add for none.
func DecodeSums(field string, at int64, add func(name string, n int64)) {
	head, rest, _ := strings.Cut(field, " ")
	if head != strconv.FormatInt(at, 10) {
		return
	}
	for rest != "" {
		var name, number string
		name, rest, _ = strings.Cut(rest, " ")
		number, rest, _ = strings.Cut(rest, " ")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n < 0 {
			return
		}
		add(name, n)
	}
}
