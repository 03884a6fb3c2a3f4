package redistest

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/script"
)

// File returns the text of a file of the library. The path counts from the root.
func File(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(Path(path))
	require.NoError(t, err)
	return string(text)
}

// A Header is what the comment at the top of a script says of KEYS and ARGV, and what is under it.
type Header struct {
	Own        map[string]string // KEYS[1] and so on → name, as this file documents them
	Keys, Args []string          // all names in their order
	Rest       map[string]int    // name of an ARGV[n..] → n
	Text, Body string            // the comment, and the rest with the parts of the prelude in it
}

// Partial reports whether the header of a script documents only what it adds to enqueue, which
// follows in the same call.
func Partial(name string) bool { return follows[name] != "" }

// follows says which script follows in the same call.
var follows = map[string]string{"replace": "enqueue", "enqueue_keyed": "enqueue", "hand_over": "ack", "hand_over_again": "again", "enqueue_linked": "replace", "flow_start": "replace", "flow_release": "reschedule", "flow_cancel": "cancel"}

var headerLine = regexp.MustCompile(`^-- (KEYS|ARGV)\[(\d+)(\.\.)?\]\s+(\w+)\s+\S`)

// HeaderOf reads the header of a script and checks that its numbers go up from 1. A [Partial] one
// goes on where that of enqueue ends.
func HeaderOf(t testing.TB, name string) Header {
	t.Helper()
	h := Header{Own: map[string]string{}, Rest: map[string]int{}}
	if Partial(name) {
		next := HeaderOf(t, follows[name])
		h.Keys, h.Args = next.Keys, next.Args
	}
	h.Body = File(t, "lua/"+name+".lua")
	require.True(t, strings.HasPrefix(h.Body, "-- "+name+": "), "lua/%s.lua begins with its name", name)
	for strings.HasPrefix(h.Body, "--") {
		line, after, _ := strings.Cut(h.Body, "\n")
		h.Text, h.Body = h.Text+line+"\n", after
		m := headerLine.FindStringSubmatch(line)
		if m == nil {
			require.NotRegexp(t, `^-- (KEYS|ARGV)\[`, line, "%s: a line of the header that cannot be read", name)
			continue
		}
		list, at := &h.Args, fmt.Sprintf("%s[%s]", m[1], m[2])
		if m[1] == "KEYS" {
			list = &h.Keys
		}
		n, err := strconv.Atoi(m[2])
		require.NoError(t, err, "%s: %s", name, line)
		if n > len(*list) {
			*list = append(*list, m[4])
		}
		require.Empty(t, h.Own[at], "%s: %s", name, line)
		require.LessOrEqual(t, n, len(*list), "%s: %s", name, line)
		require.Equal(t, m[4], (*list)[n-1], "%s: %s", name, line)
		h.Own[at] = m[4]
		if m[3] != "" {
			h.Rest[m[4]] = n
		}
	}
	require.True(t, Partial(name) || len(h.Own) == len(h.Keys)+len(h.Args), name)
	h.Body = script.Paste(h.Body, map[string]bool{})
	return h
}
