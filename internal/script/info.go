package script

import "strings"

// Evicting returns the maxmemory-policy of a Redis that evicts keys when its memory is full.
func Evicting(info map[string]string) string {
	if policy := info["maxmemory_policy"]; policy != "noeviction" {
		return policy
	}
	return ""
}

// ParseInfo parses the reply of INFO.
func ParseInfo(text string) map[string]string {
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}
