package worker

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/delayq/delayq"
)

// mostValue is how many bytes a value from a file or from the environment has at most.
const mostValue = 64 << 10

// A rule says where a value may come from.
type rule int

const (
	anywhere  rule = iota // the file of the worker too
	elsewhere             // only another file or the environment, because it is a secret
)

// value returns a value that stands in the file, or that from_env or from_file leads to. A value
// from elsewhere counts as a secret. It reports whether there is one.
func (o *object) value(name string, from rule) (string, bool) {
	n := o.get(name)
	if n == nil {
		return "", false
	}
	return o.valueAt(n, name, from)
}

// valueAt is value for a node.
func (r *reader) valueAt(n *yaml.Node, what string, from rule) (string, bool) {
	switch {
	case n.Kind == yaml.ScalarNode && !isNull(n) && from == elsewhere:
		r.at(n, "%s: is a secret, which does not belong into this file; expected {from_env: NAME} or {from_file: PATH}", what)
		return "", false
	case n.Kind == yaml.ScalarNode && !isNull(n):
		r.notEmpty(n, what, n.Value)
		return n.Value, true
	case n.Kind != yaml.MappingNode:
		r.at(n, "%s: is %s; expected a value, {from_env: NAME} or {from_file: PATH}", what, kindOf(n))
		return "", false
	}
	o := r.mapping(n, what)
	before := len(r.mistakes)
	env, file := o.text("from_env"), o.text("from_file")
	o.end()
	if len(r.mistakes) > before {
		return "", false
	}
	var text string
	switch {
	case (env == "") == (file == ""):
		r.at(n, "%s: expected either from_env or from_file", what)
		return "", false
	case env != "":
		if text = r.getenv(env); text == "" {
			r.at(o.fields["from_env"].value, "%s: the variable %s of the environment is not set, or empty", what, shown(env))
			return "", false
		}
		if len(text) > mostValue {
			r.at(o.fields["from_env"].value, "%s: the variable %s has %d bytes; expected at most %d", what, shown(env), len(text), mostValue)
			return "", false
		}
	default:
		data, err := readFile(r.path(file), mostValue)
		if err != nil {
			r.at(o.fields["from_file"].value, "%s: %v", what, err)
			return "", false
		}
		if text = strings.TrimRight(string(data), "\r\n"); text == "" {
			r.at(o.fields["from_file"].value, "%s: the file %s is empty", what, shown(file))
			return "", false
		}
	}
	r.secrets = append(r.secrets, text)
	return text, true
}

// path returns a path as it is meant in the file.
func (r *reader) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(r.dir, name)
}

// readFile reads a file of a bounded size.
func readFile(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s: has more than %d bytes", name, most)
	}
	return data, err
}

// leastRedacted is how long a secret is at least that is replaced in texts. Shorter ones are in
// many words.
const leastRedacted = 4

// hidden stands for a secret. It is shorter than one, so a text does not grow.
const hidden = "…"

// A redactor replaces secrets in the errors and the outputs of handlers.
type redactor struct {
	secrets []string // the longest first
	replace *strings.Replacer
}

// newRedactor returns what replaces secrets.
func newRedactor(secrets []string) *redactor {
	r := &redactor{secrets: slices.DeleteFunc(slices.Clone(secrets), func(s string) bool { return len(s) < leastRedacted })}
	slices.SortFunc(r.secrets, func(a, b string) int { return len(b) - len(a) }) // one can be in another
	var pairs []string
	for _, s := range r.secrets {
		pairs = append(pairs, s, hidden)
	}
	r.replace = strings.NewReplacer(pairs...)
	return r
}

// text returns a text without secrets. If its beginning was cut off, it can begin within one.
func (r *redactor) text(text string, cut bool) string {
	if cut {
		text = r.cut(text)
	}
	return r.replace.Replace(text)
}

// cut replaces the end of a secret with which a text begins.
func (r *redactor) cut(text string) string {
	most := 0
	for _, s := range r.secrets {
		for n := len(s) - 1; n >= leastRedacted && n > most; n-- {
			if strings.HasPrefix(text, s[len(s)-n:]) {
				most = n
			}
		}
	}
	if most == 0 {
		return text
	}
	return hidden + text[most:]
}

// outputMark is what precedes the end of an output in the error of a command.
const outputMark = "its output ends with:\n"

// error returns an error whose text has no secrets. It is the same for errors.Is and errors.As.
func (r *redactor) error(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	head, output, found := strings.Cut(text, outputMark)
	clean := r.text(head, false)
	if found {
		clean += outputMark + r.text(output, true)
	}
	if clean == text {
		return err
	}
	return &redacted{clean, err}
}

// output replaces secrets in what a handler has attached to the run of a job.
func (r *redactor) output(job *delayq.Job) {
	output := string(job.Output())
	if clean := r.text(output, true); clean != output {
		_ = job.SetOutput([]byte(clean)) // the run has not ended, and the output is not longer
	}
}

// A redacted is an error with another text.
type redacted struct {
	text string
	err  error
}

func (e *redacted) Error() string { return e.text }

func (e *redacted) Unwrap() error { return e.err }
