//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd || solaris || illumos

package link

// On these systems go-redis verifies a pooled connection before it uses it.
const checksConns = true
