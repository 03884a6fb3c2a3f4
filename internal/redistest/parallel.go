package redistest

import (
	"flag"
	"runtime"
	"strconv"
)

// sideBySide is the number of parallel tests for each processor. The default is too low here,
// because most tests wait for their own process.
const sideBySide = 4

// SideBySide, called by TestMain, raises the number of parallel tests, unless the flag -parallel is
// set.
func SideBySide() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		// the testing package has the flag
		_ = flag.Set("test.parallel", strconv.Itoa(sideBySide*runtime.GOMAXPROCS(0)))
	}
}
