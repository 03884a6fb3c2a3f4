package record

import (
	"strconv"
	"strings"
)

// PaceOfLimits returns the time of one start in µs, and how many starts can be made at once, by the
// field flow of meta. They are 0 if there is no rate.
func PaceOfLimits(flow string) (emit, burst float64) {
	words := strings.Fields(flow)
	if len(words) < 6 || words[3] == "0" {
		return 0, 0
	}
	emit, err := strconv.ParseFloat(words[1], 64)
	burst, err2 := strconv.ParseFloat(words[2], 64)
	if err != nil || err2 != nil {
		return 0, 0
	}
	return emit, burst
}
