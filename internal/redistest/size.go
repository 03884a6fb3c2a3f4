package redistest

import "os"

// Size returns the size of a test whose larger size only gives more certainty. That is full if
// DELAYQ_FULL is set, as in CI, and otherwise a tenth of it, so that all tests take less than a
// minute.
func Size(full int) int {
	if os.Getenv("DELAYQ_FULL") != "" {
		return full
	}
	return max(1, full/10)
}
