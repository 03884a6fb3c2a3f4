package record

import "time"

// Millis returns t in Unix ms, rounded up so that nothing is ever early, and at least 1. For a time
// before 1970 or after [MaxTime], ok is false.
func Millis(t time.Time) (ms int64, ok bool) {
	if t.Before(time.UnixMilli(0)) || t.After(time.UnixMilli(MaxTime)) {
		return 0, false // before UnixMilli can overflow
	}
	ms = t.UnixMilli()
	if t.Nanosecond()%int(time.Millisecond) != 0 {
		ms++
	}
	return min(max(ms, 1), MaxTime), true
}
