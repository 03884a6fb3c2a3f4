package record

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// An AuditEntry is an act of an operator, an element of the list audit:
//
//	<at> <nonce> <count> <netstring>…
//
// The netstrings are the actor, the action, the topic, the ID, the filter and what was before. An
// earlier release has not written the last one. A reader ignores further ones.
type AuditEntry struct {
	At     int64 // Unix ms
	Actor  string
	Action string
	Topic  string
	ID     string // of a job, or the name of a schedule
	Filter string
	Count  int64 // what was changed; 0: unknown
	Was    string
}

// Bounds of the audit: how many acts it holds, and the bytes of the longest filter, and of what was
// before.
const (
	MaxActs   = 1000
	MaxFilter = 2 << 10
)

// Encode returns what follows the time and the nonce, with the filter and what was before cut to
// their bound. The script adds these two.
func (a AuditEntry) Encode() string {
	text := strconv.FormatInt(a.Count, 10) + " "
	for _, s := range []string{a.Actor, a.Action, a.Topic, a.ID, clip(a.Filter, MaxFilter), clip(a.Was, MaxFilter)} {
		text += Netstring(s)
	}
	return text
}

// DecodeAudit reads an element of the list. It reports whether the element can be read.
func DecodeAudit(element string) (a AuditEntry, ok bool) {
	words := strings.SplitN(element, " ", 4)
	if len(words) < 4 {
		return AuditEntry{}, false
	}
	at, err := strconv.ParseInt(words[0], 10, 64)
	if err != nil || at < 0 || at > MaxTime {
		return AuditEntry{}, false
	}
	count, err := strconv.ParseInt(words[2], 10, 64)
	if err != nil || count < 0 {
		return AuditEntry{}, false
	}
	a = AuditEntry{At: at, Count: count}
	rest := words[3]
	for _, field := range []*string{&a.Actor, &a.Action, &a.Topic, &a.ID, &a.Filter} {
		if *field, rest, ok = CutNetstring(rest); !ok {
			return AuditEntry{}, false
		}
	}
	if rest == "" {
		return a, true // of an earlier release
	}
	if a.Was, _, ok = CutNetstring(rest); !ok {
		return AuditEntry{}, false
	}
	return a, true
}

// BatchOf returns the topics and IDs of the jobs of an act about several, or nil if the audit does
// not name them all.
func BatchOf(topic, filter string) (jobs [][2]string) {
	if len(filter) > MaxFilter-utf8.UTFMax {
		return nil // it may be cut
	}
	var words []string
	for rest := filter; rest != ""; {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return nil // it is no list of jobs
		}
		word, _ := strconv.Unquote(quoted) // QuotedPrefix has found no fault
		words = append(words, word)
		rest = rest[len(quoted):]
		if due, moved := strings.CutPrefix(rest, " due "); moved { // of RescheduleBatch
			_, rest, _ = strings.Cut(due, ",")
		}
		rest = strings.TrimLeft(rest, ", ")
	}
	for len(words) > 0 {
		job := [2]string{topic, words[0]}
		if topic == "" && len(words) > 1 {
			job, words = [2]string{words[0], words[1]}, words[1:]
		}
		jobs, words = append(jobs, job), words[1:]
	}
	return jobs
}
