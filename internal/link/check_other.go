//go:build !linux && !darwin && !dragonfly && !freebsd && !netbsd && !openbsd && !solaris && !illumos

package link

// On these systems go-redis uses a pooled connection without verifying it.
const checksConns = false
