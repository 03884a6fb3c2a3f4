//go:build !unix

package redistest

import "syscall"

// There is no redis-server on these systems. This file makes the tests compile that need none.

const diesWithThread = false

const (
	sigStop = syscall.SIGKILL
	sigCont = syscall.SIGKILL
)

func attributes() *syscall.SysProcAttr { return nil }

func frozen(int) error { return nil }
