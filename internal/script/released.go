package script

import (
	"strings"

	"github.com/redis/go-redis/v9"
)

// Released is the script as an earlier release has sent it. text holds its headers.
func (s *Script) Released(text string) *Script {
	old := &Script{Name: s.Name, Text: text, Digest: redis.NewScript(text).Hash(), Reads: s.Reads}
	for line := range strings.Lines(text) {
		old.readKey(line)
	}
	return old
}
