package redistest

import (
	"flag"
	"runtime"
	"strconv"
)

// sideBySide is how many tests run at a time for each processor. The usual one is too few here: most tests that talk to a process of their own wait.
const sideBySide = 4

// SideBySide has TestMain run more tests at a time, unless the flag -parallel says how many.
func SideBySide() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(sideBySide*runtime.GOMAXPROCS(0))) // the testing package has it for sure
	}
}
