package redistest

import "os"

// Size is how many of something a test uses that is only larger to be the more certain: full if DELAYQ_FULL is set, as in CI, and else a tenth of
// that, so that all tests take less than a minute.
func Size(full int) int {
	if os.Getenv("DELAYQ_FULL") != "" {
		return full
	}
	return max(1, full/10)
}
