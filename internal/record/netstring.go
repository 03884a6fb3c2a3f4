package record

import (
	"strconv"
	"strings"
)

// Netstring returns <length>:<bytes>, the format of D. J. Bernstein without its comma.
func Netstring(s string) string { return strconv.Itoa(len(s)) + ":" + s }

// CutNetstring returns the first netstring of s and what follows it. Without one, rest is s.
func CutNetstring(s string) (first, rest string, ok bool) {
	size, after, found := strings.Cut(s, ":")
	n, err := strconv.Atoi(size)
	if !found || err != nil || n < 0 || n > len(after) {
		return "", s, false
	}
	return after[:n], after[n:], true
}

// clip cuts s to at most n bytes.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-3], "") + "…"
}
