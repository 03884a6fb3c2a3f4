package check

import (
	"strconv"
	"strings"

	"github.com/delayq/delayq/faults/rig"
)

// A step is one of a job with that nonce.
type step struct {
	place place
	nonce string
	n     int64
}

// A made is what is known of a step.
type made struct {
	key   string
	saved int64 // when a run had saved it; 0: none has
	by    *run
}

// step judges what a run says of a step. A run that began before the step was saved may not know
// that another one has saved it: it has lost its lease.
func (c *checker) step(e rig.Event, r *run) {
	at := step{place{e.Topic, e.ID}, e.Nonce, e.Count}
	m := c.steps[at]
	if m == nil {
		m = &made{key: e.Sum}
		c.steps[at] = m
	}
	wrong := func(text string) {
		c.Violations = append(c.Violations, Violation{"I28", e.Topic, e.ID, e.Inc, "step " + strconv.FormatInt(e.Count, 10) + " " + text})
	}
	if e.Err != "" {
		wrong(e.Err)
	}
	switch {
	case e.Type == rig.Invoke:
		if m.key == "" {
			m.key = e.Sum
		}
		if m.key != e.Sum {
			wrong("has another key than before")
		}
		if m.saved != 0 && !c.o.Failover && (r == nil || r == m.by || r.Mono > m.saved) {
			wrong("was made again " + strconv.FormatInt((e.Mono-m.saved)/1e6, 10) + " ms after it was saved")
		}
	case e.Result == rig.StepKnown:
		c.StepsKnown++
	default:
		c.Steps++
		m.saved, m.by = e.Mono, r
	}
}

// notes checks that each note is of a job, and each saved result of a step that a note names.
func (t *Topic) notes(bad func(id, format string, args ...any)) {
	notes := t.Hashes["all:notes"]
	for field, value := range notes {
		if field == "" {
			continue
		}
		switch kind, rest := field[0], field[1:]; kind {
		case 'p':
			record := t.Pool[rest]
			if len(record) < nonceLen || !strings.HasPrefix(value, record[:nonceLen]) {
				bad(rest, "note of no job or of an earlier one")
			}
		case 's':
			size, rest, _ := strings.Cut(rest, ":")
			n, err := strconv.Atoi(size)
			if err != nil || len(rest) < n+nonceLen {
				bad(field, "undocumented field of notes")
				continue
			}
			id, nonce, name := rest[:n], rest[n:n+nonceLen], rest[n+nonceLen:]
			note := notes["p"+id]
			if !strings.HasPrefix(note, nonce) || !strings.Contains(note, strconv.Itoa(len(name))+":"+name) {
				bad(id, "result of the step %q, which no note names", name)
			}
		case 'l':
			if record := t.Pool[rest]; len(record) < nonceLen || !strings.HasPrefix(value, record[:nonceLen]) {
				bad(rest, "link of no job or of an earlier one")
			}
		case 'w', 'e':
		default:
			bad(field, "undocumented field of notes")
		}
	}
}
