package redistest

import "os"

// Size returns full if DELAYQ_FULL is set, as in CI, and otherwise a tenth of it. Use it for sizes
// that only add certainty to a test. It keeps all tests below a minute.
func Size(full int) int {
	if os.Getenv("DELAYQ_FULL") != "" {
		return full
	}
	return max(1, full/10)
}
