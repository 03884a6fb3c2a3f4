//go:build unix && !linux

package redistest

import "syscall"

const diesWithThread = false

const (
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

func attributes() *syscall.SysProcAttr { return nil }

func frozen(int) error { return nil }
