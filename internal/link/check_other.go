//go:build !linux && !darwin && !dragonfly && !freebsd && !netbsd && !openbsd && !solaris && !illumos

package link

// checksConns reports whether go-redis checks that a connection is open when it takes it out of its
// pool. It does not on these systems.
const checksConns = false
