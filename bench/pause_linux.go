package main

import (
	"syscall"
	"time"
)

// exactPauses makes the pauses of this thread end when they should. By default
// Linux may add 50 µs to each.
func exactPauses() {
	const setTimerSlack, nanosecond = 29, 1 // PR_SET_TIMERSLACK of prctl
	_, _, _ = syscall.Syscall(syscall.SYS_PRCTL, setTimerSlack, nanosecond, 0)
}

// pause blocks the thread for d.
func pause(d time.Duration) {
	left := syscall.NsecToTimespec(int64(d))
	for syscall.Nanosleep(&left, &left) == syscall.EINTR {
	}
}
