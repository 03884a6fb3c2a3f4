package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/values"
)

// The headers of the jobs of tasks. They say what a task does, and where it comes from.
const (
	// HeaderTask is the kind and the name of what is done, such as "sql clean-zombies".
	HeaderTask = "task"
	// HeaderFrom is FromFile or FromCommand.
	HeaderFrom = "task-from"

	FromFile    = "file"    // a schedule of a worker's file, which removes it when it leaves the file
	FromCommand = "command" // delayq task add
)

// A schedule is a schedule of the file.
type schedule struct {
	name    string
	spec    delayq.Spec
	payload []byte
	options []delayq.ScheduleOption
}

// schedule reads a schedule of a topic.
func (l *loader) schedule(t *Topic, name string, key *yaml.Node, o *object) *schedule {
	s := &schedule{name: name}
	before := len(l.mistakes)
	every, cron := o.has("every"), o.has("cron")
	if every {
		s.spec = delayq.Every(o.span("every", time.Millisecond, forever, time.Hour))
	} else {
		o.get("every")
	}
	rule, zone := o.text("cron"), o.text("zone")
	if cron && !every {
		s.spec = delayq.Cron(rule, zone)
	}
	switch {
	case every == cron && o.isMapping():
		l.at(key, "%s: expected exactly one of every and cron", shown(name))
	case every && o.has("zone"):
		l.at(o.key("zone"), "zone: is for cron rules")
	}
	place := key
	if n := o.get("payload"); n != nil {
		s.payload, place = l.payload(n), n
	}
	if t.kind != nil && len(l.mistakes) == before {
		if text := t.kind.complaint(s.payload); text != "" {
			l.at(place, "%s", text)
		}
	}
	if o.has("key") {
		s.options = append(s.options, delayq.Key(o.text("key")))
	} else {
		o.get("key")
	}
	o.each("headers", func(name string, key, value *yaml.Node) {
		if name == HeaderTask || name == HeaderFrom {
			l.at(key, "headers: %s is reserved", name)
		}
		text, _ := l.scalar(value, name)
		s.options = append(s.options, delayq.Header(name, text))
	})
	at := func(name string, option func(time.Time) delayq.ScheduleOption) {
		if t := o.instant(name); !t.IsZero() {
			s.options = append(s.options, option(t))
		}
	}
	at("start_at", delayq.StartAt)
	at("end_at", delayq.EndAt)
	last := func(name string, least time.Duration, option func(time.Duration) delayq.ScheduleOption) {
		if d := o.span(name, least, forever, 0); d > 0 {
			s.options = append(s.options, option(d))
		}
	}
	last("jitter", time.Millisecond, delayq.Jitter)
	last("in", 0, func(d time.Duration) delayq.ScheduleOption { return delayq.ProcessIn(d) })
	last("expire_in", time.Millisecond, func(d time.Duration) delayq.ScheduleOption { return delayq.ExpireIn(d) })
	if n := o.number("max_runs", 1, math.MaxInt32, 0); n > 0 {
		s.options = append(s.options, delayq.MaxRuns(n))
	}
	if text := o.text("overlap"); text != "" {
		p, err := values.ParseOverlap(text)
		if err != nil {
			l.at(o.fields["overlap"].value, "overlap: %v", err)
		} else {
			s.options = append(s.options, p)
		}
	}
	if text := o.text("missed"); text != "" {
		p, err := values.ParseMissed(text)
		if err != nil {
			l.at(o.fields["missed"].value, "missed: %v", err)
		} else {
			s.options = append(s.options, p)
		}
	}
	job := l.job(o)
	for _, opt := range job.options() {
		s.options = append(s.options, opt)
	}
	o.end()
	s.options = append(s.options, delayq.Header(HeaderFrom, FromFile), delayq.Header(HeaderTask, taskName(t, s.payload)))
	if len(l.mistakes) == before {
		l.check.schedule(l.reader, key, name, s.spec, s.payload, s.options)
	}
	return s
}

// taskName names what a payload asks a topic for.
func taskName(t *Topic, payload []byte) string {
	if t.kind != nil {
		if what := t.kind.task(payload); what != "" {
			return t.Kind + " " + what
		}
	}
	return t.Kind
}

// mostPayload is how many bytes a payload in a file has at most, and how deep it is.
const (
	mostPayload = 1 << 20
	mostDepth   = 32
)

// payload returns the payload that a node stands for: a text as it is, and anything else as JSON.
func (l *loader) payload(n *yaml.Node) []byte {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		return []byte(n.Value)
	}
	var out bytes.Buffer
	if bad, err := toJSON(&out, n, 0); err != nil {
		l.at(bad, "payload: %v", err)
	}
	return out.Bytes()
}

// toJSON writes a node as JSON. It returns the node that cannot be written.
func toJSON(out *bytes.Buffer, n *yaml.Node, depth int) (bad *yaml.Node, err error) {
	n = aliased(n)
	switch {
	case depth > mostDepth:
		return n, fmt.Errorf("nested more than %d deep", mostDepth)
	case out.Len() > mostPayload:
		return n, fmt.Errorf("more than %d bytes", mostPayload)
	}
	switch n.Kind {
	case yaml.MappingNode:
		out.WriteByte('{')
		seen := map[string]bool{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := aliased(n.Content[i])
			if key.Kind != yaml.ScalarNode || key.Tag == "!!merge" {
				return key, errors.New("a name that JSON does not have; expected a single value")
			}
			if seen[key.Value] {
				return key, fmt.Errorf("the name %s is there twice", shown(key.Value))
			}
			seen[key.Value] = true
			if i > 0 {
				out.WriteByte(',')
			}
			writeJSON(out, key.Value)
			out.WriteByte(':')
			if bad, err := toJSON(out, n.Content[i+1], depth+1); err != nil {
				return bad, err
			}
		}
		out.WriteByte('}')
	case yaml.SequenceNode:
		out.WriteByte('[')
		for i, c := range n.Content {
			if i > 0 {
				out.WriteByte(',')
			}
			if bad, err := toJSON(out, c, depth+1); err != nil {
				return bad, err
			}
		}
		out.WriteByte(']')
	default:
		if err := scalarJSON(out, n); err != nil {
			return n, err
		}
	}
	return nil, nil
}

// scalarJSON writes a single value as JSON.
func scalarJSON(out *bytes.Buffer, n *yaml.Node) error {
	switch n.Tag {
	case "!!null":
		out.WriteString("null")
	case "!!bool":
		var b bool
		if err := n.Decode(&b); err != nil {
			return fmt.Errorf("%s is neither true nor false", shown(n.Value))
		}
		out.WriteString(strconv.FormatBool(b))
	case "!!int", "!!float":
		if json.Valid([]byte(n.Value)) { // it keeps all its digits
			out.WriteString(n.Value)
			return nil
		}
		var v any
		if err := n.Decode(&v); err != nil {
			return fmt.Errorf("%s is no number", shown(n.Value))
		}
		text, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("%s is no number of JSON", shown(n.Value))
		}
		out.Write(text)
	default: // a text, or a date, which JSON has as a text
		writeJSON(out, n.Value)
	}
	return nil
}

// writeJSON writes a string without escapes for HTML.
func writeJSON(out *bytes.Buffer, text string) {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text)        // a string can be encoded
	out.Truncate(out.Len() - 1) // the line break
}
