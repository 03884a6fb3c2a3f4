package flow

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/delayq/delayq/internal/record"
)

// Bounds of a flow. A group has no edges, and can have more steps.
const (
	MaxSteps      = 1000
	maxEdges      = 20_000  // pairs of a step and one that it waits for
	MaxBytes      = 4 << 20 // of all steps together, with their definitions
	MaxGroupSteps = 100_000
	MaxAdded      = 500 // of a call for a group
)

// A Name names a job.
type Name struct{ Topic, ID string }

// String is for errors.
func (n Name) String() string { return fmt.Sprintf("topic %q job %q", n.Topic, n.ID) }

// A Step is a step of a flow. Its number is its index among the steps of the flow.
type Step struct {
	Name
	Ignore bool  // it starts when all have ended that it waits for, however
	After  []int // the numbers of the steps that it waits for, ascending
	Before []int // the numbers of the steps that wait for it, ascending
}

// Link sorts what each step waits for, leaves out what stands there twice, and sets Before.
func Link(steps []Step) {
	for n := range steps {
		slices.Sort(steps[n].After)
		steps[n].After = slices.Compact(steps[n].After)
		for _, parent := range steps[n].After {
			steps[parent].Before = append(steps[parent].Before, n)
		}
	}
}

// fewNames is how many steps an error names.
const fewNames = 5

// Check returns the complaints about linked steps. home is the last step.
func Check(home Name, steps []Step) (errs []error) {
	edges := 0
	seen := map[Name]bool{home: true}
	for n := range steps {
		edges += len(steps[n].After)
		switch name := steps[n].Name; {
		case name == home:
			errs = append(errs, fmt.Errorf("step %d, %v, is the last step itself", n, name))
		case seen[name]:
			errs = append(errs, fmt.Errorf("step %d, %v, is in the flow already", n, name))
		}
		seen[steps[n].Name] = true
	}
	switch count := len(steps); {
	case count == 0:
		errs = append(errs, errors.New("no steps: the last step would wait for nothing"))
	case count > MaxSteps:
		errs = append(errs, fmt.Errorf("%d steps, at most %d are allowed; a group can have more", count, MaxSteps))
	}
	if edges > maxEdges {
		errs = append(errs, fmt.Errorf("the steps wait for %d others, at most %d are allowed", edges, maxEdges))
	}
	if circle := circleOf(steps); len(circle) > 0 {
		errs = append(errs, circular(steps, circle))
	}
	return errs
}

// circular returns the error for steps that wait for each other.
func circular(steps []Step, circle []int) error {
	var names []string
	for _, n := range circle[:min(len(circle), fewNames)] {
		names = append(names, fmt.Sprintf("step %d (%v)", n, steps[n].Name))
	}
	if len(circle) > fewNames {
		names = append(names, "…")
	}
	names = append(names, fmt.Sprintf("step %d", circle[0]))
	return errors.New("steps wait for each other: " + strings.Join(names, " waits for "))
}

// circleOf returns the numbers of steps of which each waits for the next one, and the last one for
// the first; nil: there are none.
func circleOf(steps []Step) (circle []int) {
	const (
		unseen = iota
		open   // on the path to the step that is looked at
		clear
	)
	mark := make([]int, len(steps))
	var path []int
	next := make([]int, len(steps)) // index in After of the one to look at next
	for first := range steps {
		if mark[first] != unseen {
			continue
		}
		for path = append(path[:0], first); len(path) > 0; {
			n := path[len(path)-1]
			mark[n] = open
			if next[n] == len(steps[n].After) {
				mark[n], path = clear, path[:len(path)-1]
				continue
			}
			parent := steps[n].After[next[n]]
			next[n]++
			switch mark[parent] {
			case open:
				return slices.Clone(path[slices.Index(path, parent):])
			case unseen:
				path = append(path, parent)
			}
		}
	}
	return nil
}

// policies precede definitions.
const (
	policyAll    = "-"
	policyIgnore = "i"
)

// Definition returns the value that defines the step.
func (s *Step) Definition() string {
	policy := policyAll
	if s.Ignore {
		policy = policyIgnore
	}
	return policy + record.Netstring(s.Topic) + record.Netstring(s.ID) + record.Netstring(numbers(s.After)) + record.Netstring(numbers(s.Before))
}

// errDefinition is the error of a definition that cannot be read.
var errDefinition = errors.New("delayq: the definition of a step is damaged")

// ReadDefinition reads a definition.
func ReadDefinition(text string) (s Step, err error) {
	switch {
	case strings.HasPrefix(text, policyIgnore):
		s.Ignore = true
	case !strings.HasPrefix(text, policyAll):
		return s, errDefinition
	}
	var field [4]string
	rest := text[1:]
	for i := range field {
		var ok bool
		if field[i], rest, ok = record.CutNetstring(rest); !ok {
			return s, errDefinition
		}
	}
	s.Topic, s.ID = field[0], field[1]
	if s.After, err = readNumbers(field[2]); err != nil {
		return s, err
	}
	s.Before, err = readNumbers(field[3])
	return s, err
}

// errWords is the error of words by which no flow can be started.
var errWords = errors.New("delayq: what is stored of a flow that is to be started is damaged")

// How many words there are about a step, about a bundle of parcels, and besides.
const (
	stepWords   = 3
	bundleWords = 2
	otherWords  = 4
)

// CheckWords returns an error if words are not those by which a script starts a flow: its name, its
// flags, for each step its definition, the number of those that it waits for, and its parcel, which
// is empty if it waits for none; for each bundle of parcels its target and its text; and the
// numbers of steps and of bundles.
func CheckWords(words []any) error {
	if len(words) < otherWords {
		return errWords
	}
	total, bundles := countOf(words[len(words)-2]), countOf(words[len(words)-1])
	if total < 1 || bundles < 0 || len(words) != otherWords+stepWords*total+bundleWords*bundles {
		return errWords
	}
	if name, _ := words[0].(string); len(name) != record.FlowNameLen {
		return errWords
	}
	for n := range total {
		definition, _ := words[2+stepWords*n].(string)
		step, err := ReadDefinition(definition)
		if err != nil {
			return err
		}
		if words[3+stepWords*n] != strconv.Itoa(len(step.After)) || (words[4+stepWords*n] == "") != (len(step.After) == 0) {
			return errWords
		}
	}
	return nil
}

// countOf returns a number of steps or of bundles; below 0: it is none.
func countOf(word any) int {
	text, _ := word.(string)
	n, err := strconv.Atoi(text)
	if err != nil || n > MaxSteps {
		return -1
	}
	return n
}

// hexDigits is how many digits the number of a step has.
const hexDigits = 8

// numbers returns the numbers of steps, one after the other.
func numbers(list []int) string {
	var text strings.Builder
	text.Grow(hexDigits * len(list))
	for _, n := range list {
		text.WriteString(hexOf(n))
	}
	return text.String()
}

// readNumbers reads what numbers has written.
func readNumbers(text string) (list []int, err error) {
	if len(text)%hexDigits != 0 {
		return nil, errDefinition
	}
	for at := 0; at < len(text); at += hexDigits {
		n, err := readHex(text[at : at+hexDigits])
		if err != nil {
			return nil, errDefinition
		}
		list = append(list, n)
	}
	return list, nil
}

// hexOf returns the number of a step as it is in Redis.
func hexOf(n int) string { return fmt.Sprintf("%0*x", hexDigits, uint32(n)) }

// readHex reads what hexOf has written.
func readHex(text string) (int, error) {
	n, err := strconv.ParseUint(text, 16, 32)
	return int(int32(uint32(n))), err
}
