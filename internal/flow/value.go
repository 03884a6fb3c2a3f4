package flow

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/delayq/delayq/internal/record"
)

// The states of a flow.
const (
	Open     = 'o' // steps have not ended, or can still be added
	Released = 'r' // all have ended: the last step is due
	Failed   = 'f' // a step has failed: the last step is due, to be buried
	Over     = 'd' // the last step is dead, and the steps that had not ended were given up
)

// The flags of a flow.
const (
	flagNone   = "-"
	flagIgnore = "i"
	flagGroup  = "g"
)

// A Flow is what Redis holds of a flow as a whole.
type Flow struct {
	Name    string // random
	State   byte
	Ignore  bool // failures of steps are not those of the flow
	Group   bool // steps can be added
	Total   int  // steps so far
	Left    int  // that have not ended
	Failed  int  // that have ended badly or were skipped
	Bytes   int64
	Started int64 // Unix ms
	Why     int   // number of the step that has made the flow fail; noStep: none has
}

// noStep is no number of a step.
const noStep = -1

// Flags returns the flags of a flow as the scripts read them.
func Flags(ignore, group bool) string {
	flags := ""
	if ignore {
		flags += flagIgnore
	}
	if group {
		flags += flagGroup
	}
	if flags == "" {
		return flagNone
	}
	return flags
}

var errFlow = errors.New("delayq: the value of the flow is damaged")

// Read reads the value of a flow.
func Read(value string) (f Flow, err error) {
	if len(value) <= record.FlowNameLen {
		return f, errFlow
	}
	f.Name = value[:record.FlowNameLen]
	field := strings.Fields(value[record.FlowNameLen:])
	if len(field) < 8 || len(field[0]) != 1 {
		return f, errFlow
	}
	f.State, f.Ignore, f.Group = field[0][0], strings.Contains(field[1], flagIgnore), strings.Contains(field[1], flagGroup)
	for i, to := range []*int{&f.Total, &f.Left, &f.Failed} {
		if *to, err = strconv.Atoi(field[2+i]); err != nil {
			return f, errFlow
		}
	}
	for i, to := range []*int64{&f.Bytes, &f.Started} {
		if *to, err = strconv.ParseInt(field[5+i], 10, 64); err != nil {
			return f, errFlow
		}
	}
	if f.Why, err = strconv.Atoi(field[7]); err != nil {
		f.Why = noStep
	}
	return f, nil
}

// The letters of the states of steps. All but the first two are outcomes.
const (
	Waits     = 'w'
	Started   = 's'
	Done      = 'o'
	Expired   = 'x'
	Dead      = 'd'
	Cancelled = 'c'
	Replaced  = 'r'
	Refused   = 'n'
	Lost      = 'g'
	Skipped   = 'k'
)

// Ended reports whether a step has ended.
func Ended(letter byte) bool { return letter != Waits && letter != Started }

// A State is the state of a step.
type State struct {
	Letter byte
	Left   int         // of a step that waits: steps that it waits for and that have not ended
	At     int64       // since when it is started, or when it has ended, Unix ms
	Text   string      // why it has ended badly; of one that is done or skipped: empty
	Cause  int         // of a skipped one: the step because of which; noStep: the flow was over
	Run    record.Done // of one that is done
}

var errState = errors.New("delayq: the state of a step is damaged")

// ReadState reads the state of a step.
func ReadState(value string) (s State, err error) {
	s.Cause = noStep
	if len(value) < 3 || value[1] != ' ' {
		return s, errState
	}
	s.Letter = value[0]
	number, text, _ := strings.Cut(value[2:], " ")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return s, errState
	}
	switch s.Letter {
	case Waits:
		s.Left = int(n)
		return s, nil
	case Done:
		_ = json.Unmarshal([]byte(text), &s.Run) // what cannot be read is not known
	case Skipped:
		if cause, err := strconv.Atoi(text); err == nil {
			s.Cause = cause
		}
	default:
		s.Text = text
	}
	s.At = n
	return s, nil
}
